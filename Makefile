# Makefile - builds everything into build/ (build-address/, build-thread/ with SAN=). `make help` lists the targets.

# What may be set on make's command line. Another name there that is like one of these is an error, so that a misspelt one does not go unnoticed; any other is a
# warning. Variables of the environment are not checked.
VARIABLES := CC CFLAGS CUDA_ARCH CXX DESTDIR JOBS NVCC O PREFIX SAN SHELL WERROR \
	BACKEND BIN GPUS HOST KV_DISK KV_DISK_MB KV_EVICTION KV_MB KV_MEMORY_MB KV_REDIS LAYOUT METRICS_PORT MODEL PORT QUESTION RUNDIR SET SPECULATIVE THREADS TOKENIZER TP \
	CHAOS_SECONDS FUZZ_SECONDS MATCH N ONLY PARTS PD_FULL PD_GPU PD_MODEL PD_MODELS QUICK SEED SOAK_LEAVE SOAK_SECONDS SOAK_STREAMS SOAK_TIERS \
	BENCH_WRITE BLOCKS BUDGET CASES CONCURRENCY CONNECTIONS COPY_BLOCKS CPU_TIME INPUTS LLAMA_BENCH MTU OVERLAP PAIRS PEER PEERS PEER_SERVER POLICIES RATIOS REQUESTS SECONDS SHAPES \
	SLICE STREAMS SUITE TOKENS TURNS TYPES VARIANT
# what packaging tools pass, whether it has an effect here or not
PACKAGERS := AM_UPDATE_INFO_DIR CPPFLAGS CXXFLAGS DEB_% INSTALL LDFLAGS V VERBOSE
UNKNOWN := $(filter-out $(VARIABLES) $(PACKAGERS),$(foreach v,$(.VARIABLES),$(if $(findstring command line,$(origin $v)),$v)))
# a word of five letters may have two mistakes, one of three letters one: a letter too many, too few, wrong, or swapped with the next
NEAREST  = $(firstword $(shell printf '%s\n' $(VARIABLES) | awk -v word='$(1)' 'function near(a, b, edits) { \
	for (; a != "" && substr(a, 1, 1) == substr(b, 1, 1); b = substr(b, 2)) a = substr(a, 2); \
	return a b == "" || edits && (near(substr(a, 2), b, edits - 1) || near(a, substr(b, 2), edits - 1) || near(substr(a, 2), substr(b, 2), edits - 1) || \
		substr(a, 1, 2) == substr(b, 2, 1) substr(b, 1, 1) && near(substr(a, 3), substr(b, 3), edits - 1)) } \
	BEGIN { word = toupper(word); most = length(word) > 4 ? 2 : length(word) > 2 } \
	{ for (edits = 0; edits <= most; edits++) if (near(word, $$0, edits)) { print edits, $$0; next } }' | sort | cut -d' ' -f2))
$(foreach v,$(UNKNOWN),$(if $(call NEAREST,$v),$(error $v is not a variable of this Makefile, $(call NEAREST,$v) is)))
$(if $(filter 0,$(MAKELEVEL)),$(foreach v,$(UNKNOWN),$(warning $v is not a variable of this Makefile, so it has no effect: `make help` and docs/run.md name them)))

CC      ?= gcc
SAN     ?=
O       := build$(if $(SAN),-$(SAN))
PREFIX  ?= /usr/local
DESTDIR ?=

PKGS     := libzmq libprotobuf-c libconfig libevent jansson libsodium libpcre2-8 libsystemd libxxhash liburing hiredis libcares libevent_openssl openssl
# what only the router links: compressed requests
PKGS_pdrouterd := zlib
LIBS_pdrouterd := $(shell pkg-config --libs $(PKGS_pdrouterd) 2>/dev/null)
# what only the messager links: ciphers of its data connections
PKGS_pdmessagerd := libcrypto
LIBS_pdmessagerd := $(shell pkg-config --libs $(PKGS_pdmessagerd) libibverbs 2>/dev/null)
# what only pdctl links: line editing, the client of chat
PKGS_pdctl := libedit libcurl
LIBS_pdctl := $(shell pkg-config --libs $(PKGS_pdctl) 2>/dev/null)
PKG_OK   := $(shell pkg-config --exists $(PKGS) $(PKGS_pdrouterd) $(PKGS_pdmessagerd) $(PKGS_pdctl) libibverbs 2>/dev/null && command -v protoc-c >/dev/null && echo yes)
# the sanitizers double what the compiler does, and half of a whole check was compiling: with them, but for fuzzers, only what computes most is optimised.
# -g1, lines without variables, saves a sixth of the compiler's time (CONTRIBUTING.md has the build for gdb)
CFLAGS   ?= $(if $(SAN),$(if $(findstring fuzz,$(SAN)),-O1,-O0) -g1,-O2 -g1)
BUSY_O   := $(if $(SAN),-O1)
BUSY     := common/engine/% common/grammar/% common/text/%
TESTS_O  := $(if $(SAN),,-O1)
TESTS    := tests/conform/% tests/fuzz/%
# of tests a warning is an error (nobody reads a log of compiling them); WERROR= for a compiler that warns of more
WERROR   ?= -Werror
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
# no fused multiply-add but where it is written: what is drawn does not depend on -march in CFLAGS
ALLFLAGS  = -std=gnu11 -D_GNU_SOURCE $(WARN) $(CPPFLAGS) $(CFLAGS) -ffp-contract=off \
            -fno-omit-frame-pointer -pthread -Icommon -I. -I$(O)/gen $(SANFLAGS) \
            $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
# libraries that a `make dist` puts beside the programs come first (of these libraries' own, too: hence the old tag)
LDLIBS    = -Wl,--as-needed,-rpath,'$$ORIGIN/../lib',--disable-new-dtags $(shell pkg-config --libs $(PKGS) 2>/dev/null) -levent_pthreads -lm -ldl -pthread
CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null)
# without the checks of pointers whose use AddressSanitizer sees: a quarter of the compiler's time
SANFLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=null,object-size,pointer-overflow
SANFLAGS_thread  := -fsanitize=thread
# not a sanitizer, but a build of its own as well: `make coverage`
SANFLAGS_coverage := --coverage -fprofile-update=atomic
# `make fuzz`: by gcc and tests/fuzz/driver.c, by clang and libFuzzer; with all of UBSan
SANFLAGS_fuzz      := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fsanitize-coverage=trace-pc
SANFLAGS_libfuzzer := $(filter-out %=trace-pc,$(SANFLAGS_fuzz)) -fsanitize=fuzzer-no-link
SANFLAGS := $(SANFLAGS_$(SAN))

# --- layers, lowest first; each is one archive -------------------------------------------------------------------------
LAYERS  := util format kv msg http svc jinja grammar text engine
LIBS    := $(LAYERS:%=$(O)/lib%.a) $(O)/libkernels.a
lib_src  = $(sort $(wildcard common/$(1)/*.c))
COPY_SRC := $(addprefix kernels/,copy.c divided.c host_copy.c host_memory.c load.c)
KSRC    := $(sort $(wildcard kernels/*.c kernels/cpu/*.c kernels/sim/*.c))
PROTOS  := $(sort $(wildcard proto/*.proto))
GEN     := $(PROTOS:proto/%.proto=$(O)/gen/%.pb-c.o)
STAGES  := $(filter-out %/main.c,$(sort $(wildcard daemons/worker/*.c daemons/worker/*/*.c daemons/prefill/*.c daemons/decode/*.c)))

# program -> its own sources -> the archives it may link (only workers link the engine; messager and storage the copies of its pools)
PROGRAMS := pdrouterd pdprefilld pddecoded pdrank pdmessagerd pdstoraged pdctl pdbench
EDGE     := $(O)/libtext.a $(O)/libgrammar.a $(O)/libjinja.a $(O)/libformat.a $(O)/libsvc.a $(O)/libhttp.a $(O)/libmsg.a $(O)/libkv.a $(O)/libutil.a
SRC_pdrouterd   := $(sort $(wildcard daemons/router/*.c daemons/router/*/*.c))
SRC_pdprefilld  := $(wildcard daemons/prefill/main.c)
SRC_pddecoded   := $(wildcard daemons/decode/main.c)
SRC_pdrank      := $(sort $(wildcard daemons/rank/*.c))
SRC_pdmessagerd := $(sort $(wildcard daemons/messager/*.c daemons/messager/*/*.c))
SRC_pdstoraged  := $(sort $(wildcard daemons/storage/*.c))
SRC_pdctl       := $(sort $(wildcard tools/pdctl/*.c))
SRC_pdbench     := $(sort $(wildcard tools/pdbench/*.c))
WORKERS         := pdprefilld pddecoded pdrank
COPIERS         := pdmessagerd pdstoraged
WORKER_LIBS     := $(O)/libstages.a $(O)/libengine.a $(O)/libkernels.a $(EDGE)
BUILT := $(foreach p,$(PROGRAMS),$(if $(SRC_$(p)),$(O)/bin/$(p)))

# the CUDA backend is built where there is a toolkit of CUDA 13 or later
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUBLAS_H  := $(if $(NVCC),$(wildcard $(dir $(NVCC))../include/cublasLt.h /usr/include/cublasLt.h))
NVCC_OK   := $(if $(CUBLAS_H),$(shell $(NVCC) --version 2>/dev/null | grep -qE 'release (1[3-9]|[2-9][0-9])\.' && echo yes))
CUDA      := $(if $(SAN),,$(if $(NVCC_OK),$(O)/lib/pdserve/pdserve-cuda.so))

all: programs $(CUDA)
programs: deps-ok $(BUILT) compile_commands.json

.PHONY: all programs deps-ok clean help demo run check check-sanitizers check-all check-full check-cuda lint install
deps-ok:
ifneq ($(PKG_OK),yes)
	@echo "missing Debian packages: run tools/setup (it installs them with apt-get)" >&2; exit 1
endif

obj = $(patsubst %.c,$(O)/obj/%.o,$(1))

$(foreach l,$(LAYERS),$(eval $(O)/lib$(l).a: $(call obj,$(call lib_src,$(l)))))
$(O)/libmsg.a: $(GEN)
$(O)/libkernels.a: $(call obj,$(KSRC))
# what copies blocks of pools, and nothing else of a backend
$(O)/libcopy.a: $(call obj,$(COPY_SRC))
$(O)/libstages.a: $(call obj,$(STAGES))
$(O)/%.a:
	@mkdir -p $(@D); rm -f $@; ar rcs $@ $^

# kernels: the file's ending says which instructions it may use
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
# -O3 would take minutes for each of the instrumented kernel files, and so would UBSan's checks of each access. Of the fast ones, which are a third of what the
# compiler does for all programs, variables are not described: that was nearly half of their time.
FAST_UBSAN := -fno-sanitize=alignment,null,object-size,pointer-overflow -fno-sanitize=nonnull-attribute,returns-nonnull-attribute
# and AddressSanitizer's checks are calls in them, which takes gcc half of the time (clang has another name for that)
ASAN_CALLS := --param asan-instrumentation-with-call-threshold=0
FAST_ASAN  := $(if $(filter address,$(SAN)),$(shell $(CC) $(ASAN_CALLS) -E -x c /dev/null >/dev/null 2>&1 && echo $(ASAN_CALLS)))
KFLAGS      = $(if $(SAN),-O1 $(if $(findstring /fast_,$<),$(FAST_UBSAN) $(FAST_ASAN)),-O3 $(if $(findstring /fast_,$<),-g1)) \
              $(if $(filter %_avx2.c,$<),$(ISA_avx2)) $(if $(filter %_avx512.c,$<),$(ISA_avx512))

# order-only: who includes them is in the .d files
$(O)/obj/%.o: %.c | $(PROTOS:proto/%.proto=$(O)/gen/%.pb-c.h)
	@mkdir -p $(@D)
	@echo "  CC $<"
	@$(CC) $(ALLFLAGS) $(if $(filter kernels/%,$<),$(KFLAGS)) $(if $(filter $(BUSY),$<),$(BUSY_O)) $(if $(filter $(TESTS),$<),$(TESTS_O) $(WERROR)) -MMD -MP -c $< -o $@

$(O)/gen/%.pb-c.c $(O)/gen/%.pb-c.h &: proto/%.proto
	@mkdir -p $(@D)
	@echo "  PROTO $<"
	@protoc-c --c_out=$(O)/gen -Iproto $<
$(O)/gen/%.pb-c.o: $(O)/gen/%.pb-c.c $(PROTOS:proto/%.proto=$(O)/gen/%.pb-c.h)
	@$(CC) -std=gnu11 -D_GNU_SOURCE $(CFLAGS) $(SANFLAGS) -I$(O)/gen -MMD -MP -c $< -o $@
.SECONDARY:

# the CUDA backend, a shared object: by nvcc for GPUs, where there is a toolkit of CUDA 13 or later; by g++ with kernels on the host (tests/cuda_host), for tests
CUDA_SRC  := $(sort $(wildcard kernels/cuda/*.c kernels/cuda/*.cu)) kernels/common.c kernels/ops.c
CUDA_ARCH := 80 89 90a 100 120
NVCCFLAGS := -std=c++20 -O3 -lineinfo -fmad=false -Xptxas -v,-warn-spills -Xfatbin -compress-all -Xcompiler -fPIC,-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off -I. \
             $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a))
# what tests/cuda_host says of cuBLASLt, held against the toolkit's header
LT_VALUES := tests/cuda_host/lt/values.c
# and what kernels/cuda says of NCCL, against NCCL's own header where it is installed: it is no part of the toolkit
NCCL_VALUES := tests/cuda_host/nccl/values.c
NCCL_H := $(if $(NVCC),$(wildcard $(dir $(NVCC))../include/nccl.h /usr/include/nccl.h))
$(O)/cuda/$(NCCL_VALUES).o: ALLFLAGS += -DNCCL_OWN
# what may spill: two registers of 255, stored twice and loaded once, for sm_89 and sm_100; sampling for sm_120
SPILLS := -e "'attention_prefill_128', 8 bytes spill stores" -e "'sample_rows', 44 bytes spill stores"
# C75xx are infos of ptxas that it runs wgmma one after the other: right, and several times slower
$(O)/cuda/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	@$(NVCC) $(NVCCFLAGS) -MD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@ 2>$(O)/cuda/$(*F).log || { cat $(O)/cuda/$(*F).log; rm -f $@; exit 1; }
	@! grep -vF $(SPILLS) $(O)/cuda/$(*F).log | grep -iE -A3 'warning|\(C75[0-9]{2}\)|serialized' || { rm -f $@; exit 1; }
$(O)/cuda/%.c.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $<"
	@$(CC) $(ALLFLAGS) -fPIC -isystem $(dir $(NVCC))../include -MD -MP -c $< -o $@
$(O)/lib/pdserve/pdserve-cuda.so: $(CUDA_SRC:%=$(O)/cuda/%.o)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(NVCC) -shared -cudart static -Xcompiler -static-libstdc++,-static-libgcc -Xlinker --exclude-libs,ALL -o $@ $^ -ldl
.PHONY: cuda cuda-resources
cuda: $(or $(CUDA),no-nvcc) $(if $(CUDA),$(O)/cuda/$(LT_VALUES).o $(if $(NCCL_H),$(O)/cuda/$(NCCL_VALUES).o))
no-nvcc:
	@echo "the CUDA backend needs nvcc of CUDA 13 or later, in PATH or /usr/local/cuda/bin, with the headers of cuBLAS" >&2; exit 1
cuda-resources: cuda
	@NVCC=$(NVCC) CUDA_LOGS=$(O)/cuda tools/cuda-resources

# ThreadSanitizer sees the host's threads, not fibres, of which a block has hundreds: it would take half a minute to open a device
NO_FIBRES  = $(if $(filter thread,$(SAN)),$(if $(filter %.cu,$<),-fno-sanitize=thread)) $(if $(filter %/grid.c,$<),$(GRID_FLAGS))
# what switches fibres and multiplies for them takes most of the kernels' time; it touches memory of its own alone, and test_cuda_host tests it
GRID_FLAGS := -O3 -fno-sanitize=all
SHIM_OBJ  := $(patsubst %,$(O)/cuda_host/%.o,$(sort $(wildcard tests/cuda_host/*.c)))
$(O)/cuda_host/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  C++ $<"
	@$(CXX) -x c++ -std=gnu++20 -D_GNU_SOURCE -Wall -Wextra -Wno-missing-field-initializers $(CFLAGS) $(BUSY_O) -ffp-contract=off -fno-omit-frame-pointer -fPIC -pthread -Itests/cuda_host -I. \
		$(SANFLAGS) $(NO_FIBRES) -MMD -MP -c $< -o $@
$(O)/cuda_host/%.c.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $<"
	@$(CC) $(ALLFLAGS) $(BUSY_O) $(NO_FIBRES) -fPIC -Itests/cuda_host -MMD -MP -c $< -o $@
$(O)/cuda_host/pdserve-cuda.so: $(CUDA_SRC:%=$(O)/cuda_host/%.o) $(SHIM_OBJ)
	@echo "  LD $@"
	@$(CXX) $(CFLAGS) $(SANFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^ -lm -ldl -pthread
# the same without its self-test, for tests in which many processes open a device
QUICK_OBJ := $(CUDA_SRC:kernels/cuda/selftest.c=tests/cuda_host/quick/selftest.c)
$(O)/cuda_host/quick/pdserve-cuda.so: $(QUICK_OBJ:%=$(O)/cuda_host/%.o) $(SHIM_OBJ)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CXX) $(CFLAGS) $(SANFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^ -lm -ldl -pthread
$(O)/cuda_host/quick/lib%: $(O)/cuda_host/lib%
	@mkdir -p $(@D)
	@ln -sf ../$(@F) $@
# the stand-in's cuBLASLt and NCCL, on the same runtime; the backend loads what lies beside it
$(O)/cuda_host/libnccl.so.2: $(O)/cuda_host/tests/cuda_host/nccl/nccl.cu.o $(O)/cuda_host/$(NCCL_VALUES).o $(O)/cuda_host/pdserve-cuda.so
	@echo "  LD $@"
	@$(CXX) $(CFLAGS) $(SANFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^
$(O)/cuda_host/libcublasLt.so.13: $(O)/cuda_host/tests/cuda_host/lt/cublaslt.cu.o $(O)/cuda_host/$(LT_VALUES).o $(O)/cuda_host/pdserve-cuda.so
	@echo "  LD $@"
	@$(CXX) $(CFLAGS) $(SANFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^

libs_of = $(if $(filter $(WORKERS),$(1)),$(WORKER_LIBS),$(EDGE) $(if $(filter $(COPIERS),$(1)),$(O)/libcopy.a))
# the commit: only programs have it (common/util/version.h)
.PHONY: force
$(O)/gen/build_version.c: force
	@tools/make-build-version $@
BUILD_VERSION := $(O)/gen/build_version.o
$(BUILD_VERSION): $(O)/gen/build_version.c
	@$(CC) -std=gnu11 $(CFLAGS) $(SANFLAGS) -c $< -o $@
define program
$(O)/bin/$(1): $(call obj,$(SRC_$(1))) $(BUILD_VERSION) $(call libs_of,$(1))
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	@$(CC) $(CFLAGS) $(LDFLAGS) $(SANFLAGS) -rdynamic -o $$@ $(call obj,$(SRC_$(1))) $(BUILD_VERSION) -Wl,--start-group $(call libs_of,$(1)) -Wl,--end-group $$(LIBS_$(1)) $$(LDLIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

# --- for tests: messages that are lost, repeated and late (tests/fault/fault.h), in test programs and in a second set of daemons, $(O)/faulty/
FAULT  := $(O)/libfault.a
FAULTY := $(patsubst %,$(O)/faulty/%,pdrouterd pdprefilld pddecoded pdmessagerd pdstoraged)
$(FAULT): $(call obj,$(sort $(wildcard tests/fault/*.c)))
define faulty
$(O)/faulty/$(1): $(O)/bin/$(1) $(FAULT)
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	@$(CC) $(CFLAGS) $(LDFLAGS) $(SANFLAGS) -rdynamic -o $$@ $(call obj,$(SRC_$(1))) $(BUILD_VERSION) -Wl,--whole-archive $(FAULT) -Wl,--no-whole-archive -Wl,--start-group $(call libs_of,$(1)) -Wl,--end-group $$(LIBS_$(1)) $$(LDLIBS)
endef
$(foreach p,$(notdir $(FAULTY)),$(eval $(call faulty,$(p))))
.PHONY: faulty
faulty: programs $(FAULTY)
	@cd $(O)/faulty && ln -sf ../bin/pdctl ../bin/pdrank ../bin/pdbench .

# --- tests/unit/test_X.c, of functions, and tests/daemon/test_X.c, of one real daemon between played peers: $(O)/test/test_X ---
vpath test_%.c tests/unit tests/daemon
ALLLIBS := $(O)/libstages.a $(LIBS)
# test.h before each: tests register themselves, and main.c has the main of all
UNIT      := -Itests/unit -include tests/unit/test.h $(WERROR)
UNIT_MAIN := $(O)/obj/tests/unit/main.o
# what is tested is optimised, tests are not: half of the compiler's time
GOLD     := $(if $(shell command -v ld.gold),-fuse-ld=gold)
TEST_O   := -O0 $(GOLD)
# most of their time is their own
$(addprefix $(O)/test/,test_messager_model test_messager_walk test_storage_disk test_storage_disk_fault): TEST_O := $(GOLD)
$(O)/test/test_%: test_%.c $(FAULT) $(ALLLIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -MMD -MP -MF $@.d -o $@ $< $(UNIT_MAIN) -Wl,--start-group $(FAULT) $(ALLLIBS) -Wl,--end-group $(LDLIBS) $(CHECK_LIBS)
# what reads bytes that others wrote (tools/run-tests, `parser`): links no engine, so that nobody waits for one when these alone are built under AddressSanitizer
PARSERS := $(basename $(notdir $(shell grep -lE '^/\* run:( [a-z]+)* parser ' tests/unit/test_*.c)))
OF_DAEMONS := test_fuzz test_messager_% test_router_% test_storage_%
$(patsubst %,$(O)/test/%,$(filter-out $(OF_DAEMONS),$(PARSERS))): $(O)/test/%: %.c $(FAULT) $(EDGE)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -MMD -MP -MF $@.d -o $@ $< $(UNIT_MAIN) -Wl,--start-group $(FAULT) $(EDGE) -Wl,--end-group $(LDLIBS) $(CHECK_LIBS)
# tests/bench/bench_X.c -> $(O)/bench/bench_X, built like the unit tests
$(O)/bench/%: tests/bench/%.c $(ALLLIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) -MMD -MP -MF $@.d -o $@ $< $(filter %.o,$^) -Wl,--start-group $(ALLLIBS) -Wl,--end-group $(LDLIBS)
$(O)/bench/bench_gpu: $(call obj,tests/bench/bench_gpu_model.c)
$(O)/bench/bench_gpu_copies: $(call obj,daemons/storage/sum.c)
# test_DAEMON_X.c and tests/bench/bench_DAEMON.c may use that daemon's own sources, all but its main.c
define daemon_tests
$(O)/lib$(1).a: $(call obj,$(filter-out %/main.c,$(SRC_pd$(1)d)))
$(O)/test/test_$(1)_%: test_$(1)_%.c $(O)/lib$(1).a $(call libs_of,pd$(1)d)
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	@$(CC) $$(ALLFLAGS) $$(TEST_O) $$(UNIT) -MMD -MP -MF $$@.d -o $$@ $$< $(UNIT_MAIN) -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group $$(LIBS_pd$(1)d) $$(LDLIBS) $(CHECK_LIBS)
$(O)/bench/bench_$(1): tests/bench/bench_$(1).c $(O)/lib$(1).a $(ALLLIBS)
	@mkdir -p $$(@D)
	@echo "  LD $$@"
	@$(CC) $$(ALLFLAGS) -MMD -MP -MF $$@.d -o $$@ $$< -Wl,--start-group $(O)/lib$(1).a $(ALLLIBS) -Wl,--end-group $$(LIBS_pd$(1)d) $$(LDLIBS)
endef
$(foreach d,router messager storage,$(eval $(call daemon_tests,$(d))))
# these play a worker, with its own code
$(O)/test/test_messager_daemon $(O)/test/test_storage_daemon: $(O)/libstages.a $(FAULT)
# tests/rdma/end_to_end.c, for the guest of `make check-rdma` and for real devices
$(O)/rdma/end_to_end: tests/rdma/end_to_end.c $(O)/libmessager.a $(ALLLIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) -MMD -MP -MF $@.d -o $@ $< -Wl,--start-group $(O)/libmessager.a $(ALLLIBS) -Wl,--end-group $(LDLIBS)
# tests/unit/test_pdbench_X.c, with all of pdbench but its main.c
$(O)/libpdbench.a: $(call obj,$(filter-out %/main.c,$(SRC_pdbench)))
$(O)/test/test_pdbench_%: tests/unit/test_pdbench_%.c $(O)/libpdbench.a $(O)/libutil.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -Itools -MMD -MP -MF $@.d -o $@ $< $(UNIT_MAIN) $(O)/libpdbench.a $(O)/libutil.a $(LDLIBS) $(CHECK_LIBS)
# tests/unit/test_pdctl_X.c, with what pdctl computes on its own
$(O)/libpdctl.a: $(call obj,tools/pdctl/histogram.c tools/pdctl/term.c tools/pdctl/trace_line.c tools/pdctl/trace_spans.c)
$(O)/test/test_pdctl_%: tests/unit/test_pdctl_%.c $(O)/libpdctl.a $(O)/libutil.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -Itools -MMD -MP -MF $@.d -o $@ $< $(UNIT_MAIN) $(O)/libpdctl.a $(O)/libutil.a $(LDLIBS) $(CHECK_LIBS)
# tests/unit/test_cuda_host.c: the shim itself, with kernels of its own
$(O)/test/test_cuda_host: tests/unit/test_cuda_host.c $(O)/cuda_host/tests/cuda_host/kernels.cu.o $(SHIM_OBJ)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -Itests/cuda_host -MMD -MP -MF $@.d -o $@ $^ -lstdc++ -lm -pthread $(CHECK_LIBS)
# tests/fuzz/fuzz_NAME.c, each of which registers itself: all of them in one unit test, which replays their corpus, and in one fuzzer
FUZZ_OBJ  := $(call obj,$(sort $(wildcard tests/fuzz/fuzz_*.c)) tests/fuzz/targets.c)
FUZZ_LIBS := $(addprefix $(O)/lib,router.a messager.a storage.a pdbench.a pdctl.a copy.a) $(filter-out $(O)/libkernels.a,$(LIBS)) $(O)/obj/kernels/common.o
$(O)/test/test_fuzz: tests/unit/test_fuzz.c $(FUZZ_OBJ) $(FUZZ_LIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) $(TEST_O) $(UNIT) -MMD -MP -MF $@.d -o $@ $< $(UNIT_MAIN) $(FUZZ_OBJ) -Wl,--start-group $(FUZZ_LIBS) -Wl,--end-group $(LIBS_pdrouterd) $(LIBS_pdmessagerd) $(LDLIBS) $(CHECK_LIBS)
UNIT_TESTS := $(patsubst %.c,$(O)/test/%,$(notdir $(wildcard tests/unit/test_*.c tests/daemon/test_*.c)))
$(UNIT_TESTS): $(UNIT_MAIN)
# which start them
$(patsubst %.c,$(O)/test/%,$(notdir $(wildcard tests/daemon/test_*.c))): | $(BUILT) $(FAULTY)
FUZZ_MAIN := $(if $(filter libfuzzer,$(SAN)),tests/fuzz/libfuzzer.c,tests/fuzz/driver.c)
$(O)/fuzz/driver: $(call obj,$(FUZZ_MAIN)) $(FUZZ_OBJ) $(FUZZ_LIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(CFLAGS) $(SANFLAGS) $(if $(filter libfuzzer,$(SAN)),-fsanitize=fuzzer) -o $@ $(call obj,$(FUZZ_MAIN)) $(FUZZ_OBJ) -Wl,--start-group $(FUZZ_LIBS) -Wl,--end-group $(LIBS_pdrouterd) $(LIBS_pdmessagerd) $(LDLIBS)
# tests/conform: test_conform_X.c -> $(O)/test/test_conform_X, a part of the conformance tests; all of them in $(O)/test/conform, for a backend by its name
CONFORM_OBJ   := $(call obj,$(filter-out tests/conform/test_%,$(sort $(wildcard tests/conform/*.c))))
CONFORM_TESTS := $(sort $(wildcard tests/conform/test_*.c))
CONFORM_LIBS  := $(O)/libformat.a $(O)/libkernels.a $(O)/libutil.a
define conform_program
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(CFLAGS) $(SANFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(CONFORM_LIBS) -Wl,--end-group $(LDLIBS) $(CHECK_LIBS)
endef
$(O)/test/test_conform_%: $(O)/obj/tests/conform/test_conform_%.o $(CONFORM_OBJ) $(CONFORM_LIBS)
	$(conform_program)
$(O)/test/conform: $(call obj,$(CONFORM_TESTS)) $(CONFORM_OBJ) $(CONFORM_LIBS)
	$(conform_program)

# harnesses of tests/fuzz for FUZZ_SECONDS each; ONLY="gguf safetensors" picks some
.PHONY: fuzz
fuzz:
	@tools/setup
	@tests/fuzz/run $(ONLY)

# clients from PyPI against real daemons, in build/venv-*; ONLY="litellm locust" picks some
.PHONY: check-clients
check-clients: programs
	@tools/setup --clients
	@PD_MODEL="$${PD_MODEL:-$$(tools/fetch-model)}" ONLY="$(ONLY)" python3 tests/clients/run

# --- what people type -----------------------------------------------------------------------------------------------------
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

help:
	@echo "make            build everything into build/bin/ (SAN=address or SAN=thread: into build-address/, build-thread/)"
	@echo "make demo       install what is missing, build, get the model, ask one question through five daemons, show its timeline"
	@echo "make run        the same, and stay up: PORT=8080 LAYOUT=1p1d MODEL=file THREADS=n RUNDIR=folder BACKEND=cuda|sim SET='decode.max_sequences=8' (docs/run.md lists all)"
	@echo "make check      the tests of this machine's CPU, and the parsers' under AddressSanitizer; ends with 'N passed, N failed'"
	@echo "make check-sanitizers most unit tests under AddressSanitizer, where threads meet under ThreadSanitizer, the CUDA backend on the host's stand-in for a GPU"
	@echo "make check-all  both; check-full: also the tests that take minutes, and all tests under the sanitizers (PD_FULL=1)"
	@echo "make check-cuda the CUDA backend on the host's stand-in for a GPU: conformance and whole suites (a part of make check-sanitizers)"
	@echo "make check-models every family of models in whole suites, against the tokens of its reference"
	@echo "make check-hosts several hosts as network namespaces: links with keys, cuts, kills, refusals (as root)"
	@echo "make check-rdma RDMA in a qemu guest with software NICs (rdma_rxe): paths beside ib_write_bw, daemons of several hosts"
	@echo "make check-clients openai, litellm, LangChain, lm-eval, aiperf, ... from PyPI against real daemons; ONLY=\"litellm locust\" picks some"
	@echo "make coverage   lines and branches that unit and daemon tests go through, by folder; ONLY=\"test_conf test_pool\" picks some"
	@echo "make bench      against llama.cpp, hand-shake, KV transfer, the whole suite (parts: bench-peer bench-handover bench-kv bench-suite)"
	@echo "make bench-NAME scheduling and placement on simulated accelerators: policies, blocked-peer, ... (tests/bench/bench.mk lists them)"
	@echo "make bench-text tokenizers, chat templates and constrained output, beside Hugging Face tokenizers, tiktoken, Jinja2 and llguidance"
	@echo "make isolation  what one client can cost another: floods, hand-shakes, expensive grammars, slow ends, beside a neighbour; up to 8 minutes: ONLY=\"flood burst\""
	@echo "make soak       64 streams for 60 s: no error, no leak, memory flat: LAYOUT=1p2d SOAK_SECONDS=60 QUICK=1"
	@echo "make chaos      kills, stops, faults and hostile clients over all daemons: no wrong answer, nothing hung or leaked: CHAOS_SECONDS=600 SEED=1"
	@echo "make model      checks the hand-over protocol's models (tests/model), up to 15 minutes on two cores; MATCH='^m' picks lines"
	@echo "make mutants    breaks an operator of what safety depends on, and looks whether a test notices: N=100 SEED=1 ONLY=word"
	@echo "make fuzz       fuzzes every decoder for FUZZ_SECONDS=60; ONLY=\"gguf safetensors\" picks some"
	@echo "make lint       include direction, etc/ against the programs, layout, lengths, cppcheck"
	@echo "make format     lays out the C sources (.clang-format)"
	@echo "make man        man pages of programs and configuration files"
	@echo "make install    PREFIX=/usr/local DESTDIR=: programs, configuration, systemd units, man pages, documents"
	@echo "make uninstall  removes what install has put there, but for the configuration: the same PREFIX and DESTDIR"
	@echo "make dist       a folder that runs without root, with the CUDA backend (docs/gpu.md)"
	@echo "make gpu-first  what to run first on a real GPU, six minutes; make check-gpu: all tests of the CUDA backend; make bench-gpu measures it"
	@echo "make clean      remove what was built"

# packages first, in a make of its own: what is installed is looked at when a Makefile is read
demo run:
	@tools/setup
	@$(MAKE) -s --no-print-directory -j$(JOBS) programs $(if $(filter cuda,$(BACKEND)),cuda)
	@PDSERVE_UNDER_MAKE=1 exec tools/pdserve-launch $@

# this machine's tests, and those of what reads a stranger's bytes under AddressSanitizer; PARTS: others of tools/run-tests
check:
	@tools/setup
	@tools/setup --test
	@tools/run-tests $(PARTS)
# what they leave: the sanitizers, and the CUDA backend on the host's stand-in for a GPU
SANITIZERS := cuda-suites address thread cuda
check-sanitizers:
	@$(MAKE) --no-print-directory check PARTS="$(SANITIZERS)"
check-all:
	@$(MAKE) --no-print-directory check PARTS="plain $(SANITIZERS)"
# the same with what takes minutes more: the reference kernels on all 22 prompts of the real model
check-full:
	@PD_FULL=1 $(MAKE) --no-print-directory check-all
check-cuda:
	@$(MAKE) --no-print-directory check PARTS="cuda cuda-suites"

# which lines and branches tests go through, by folder; ONLY="test_conf test_pool" picks some
.PHONY: coverage
coverage:
	@tools/setup --test
	@$(MAKE) --no-print-directory -j$(JOBS) SAN=coverage programs $$(tools/coverage --list $(ONLY))
	@tools/coverage $(ONLY)

# every family of tests/data/golden in whole suites: mixed and split, in float32 against the reference's tokens, and in BF16
.PHONY: check-models
check-models: all
	@tools/setup --test
	@PD_MODELS=all tools/run-tests plain test_models

lint: all
	@tools/lint

.PHONY: man
man: programs
	@tools/make-man $(O)/bin $(O)/man && echo "man pages: $(O)/man; man -l $(O)/man/man8/pdrouterd.8 shows one"

.PHONY: format
format:
	@tools/format

# for editors: how each file is compiled
EDITED := $(sort $(wildcard common/*/*.c daemons/*/*.c daemons/*/*/*.c kernels/*.c kernels/*/*.c tools/*/*.c tests/unit/*.c tests/daemon/*.c tests/conform/*.c tests/bench/*.c))
compile_commands.json: Makefile $(EDITED:%=)
	@{ echo '['; for f in $(EDITED); do echo '{"directory":"$(CURDIR)","file":"'$$f'","command":"$(subst ",\",$(CC) $(ALLFLAGS)) '$$(case $$f in \
		*_avx2.c) echo $(ISA_avx2);; *_avx512.c) echo $(ISA_avx512);; tests/unit/*|tests/daemon/*) echo $(UNIT);; esac)' -c '$$f'"},'; done | sed '$$s/,$$//'; echo ']'; } >$@

# hosts as network namespaces, over TCP with keys; as root
.PHONY: check-hosts
check-hosts: programs
	@tools/setup --hosts
	@/usr/bin/python3 -m pytest -q -p no:cacheprovider tests/hosts

# RDMA with the real libibverbs, in a guest with the kernel's rdma_rxe: paths give correct bytes, their rate beside ib_write_bw's; daemons of three hosts hand KV over
.PHONY: check-rdma
check-rdma: $(O)/rdma/end_to_end programs
	@tools/setup --rdma
	@tests/rdma/run.sh $<

.PHONY: chaos
chaos: all faulty
	@python3 tests/chaos/chaos.py --seconds $(or $(CHAOS_SECONDS),600) --seed $(or $(SEED),1)

# one operator at a time is broken in what safety depends on: does a test notice? N=100 SEED=1 ONLY=word
.PHONY: mutants
mutants:
	@tools/setup
	@tools/setup --test
	@python3 tests/mutants/mutants.py --n $(or $(N),100) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

# the protocol's models, exhaustively; MATCH=pattern picks lines of tests/model/table
.PHONY: model
model:
	@tools/setup --spin
	@tests/model/run.sh '$(MATCH)'

SYSCONF := $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)/pdserve
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/doc/pdserve $(DESTDIR)$(SYSCONF)
	$(if $(CUDA),install -d $(DESTDIR)$(PREFIX)/lib/pdserve && install -m 755 $(CUDA) $(DESTDIR)$(PREFIX)/lib/pdserve)
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/lib/sysusers.d
	install -m 755 $(PROGRAMS:%=$(O)/bin/%) $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	install -m 644 tools/completion/pdctl.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/pdctl
	install -m 644 tools/completion/_pdctl $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	for f in etc/*.conf etc/api_keys; do test -e $(DESTDIR)$(SYSCONF)/$${f##*/} || install -m 644 $$f $(DESTDIR)$(SYSCONF); done
	install -d $(DESTDIR)$(SYSCONF)/sim
	for f in etc/sim/*.conf; do test -e $(DESTDIR)$(SYSCONF)/sim/$${f##*/} || install -m 644 $$f $(DESTDIR)$(SYSCONF)/sim; done
	for f in systemd/*.service systemd/*.target; do \
		umask 022; sed -e 's|/usr/local/bin|$(PREFIX)/bin|g' -e 's|/etc/pdserve|$(SYSCONF)|g' $$f >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${f##*/} || exit 1; done
	install -m 644 systemd/pdserve.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/pdserve.conf
	install -d $(DESTDIR)$(PREFIX)/share/doc/pdserve/docs $(DESTDIR)$(PREFIX)/share/doc/pdserve/proto
	install -m 644 README.md CONTRIBUTING.md LICENSE $(DESTDIR)$(PREFIX)/share/doc/pdserve
	install -m 644 docs/*.md $(DESTDIR)$(PREFIX)/share/doc/pdserve/docs
	install -m 644 proto/PROTOCOL.md $(DESTDIR)$(PREFIX)/share/doc/pdserve/proto
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/pdserve/etc etc/README
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/pdserve/etc/kubernetes etc/kubernetes/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/pdserve/etc/kubernetes-pipeline etc/kubernetes-pipeline/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/pdserve/etc/slurm etc/slurm/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/pdserve/etc/prometheus etc/prometheus/*
	tools/make-man $(O)/bin $(DESTDIR)$(PREFIX)/share/man

# what install has put there, but for the configuration, which may have been changed
INSTALLED := $(PROGRAMS:%=bin/%) lib/sysusers.d/pdserve.conf share/bash-completion/completions/pdctl share/zsh/site-functions/_pdctl \
	$(patsubst systemd/%,lib/systemd/system/%,$(wildcard systemd/*.service systemd/*.target)) $(foreach p,$(PROGRAMS),share/man/man1/$(p).1 share/man/man8/$(p).8) \
	$(patsubst %,share/man/man5/pdserve-%.5,api_keys $(patsubst etc/%,%,$(wildcard etc/*.conf)) sim.conf) share/man/man7/pdserve-metrics.7
.PHONY: uninstall
uninstall:
	rm -f $(INSTALLED:%=$(DESTDIR)$(PREFIX)/%)
	rm -rf $(DESTDIR)$(PREFIX)/lib/pdserve $(DESTDIR)$(PREFIX)/share/doc/pdserve
	@echo "left as they are: $(DESTDIR)$(SYSCONF), the user pdserve and what the daemons have stored"

# a folder that runs without root, with the CUDA backend and what checks it on a GPU
.PHONY: dist gpu-first check-gpu
GPU_TESTS := $(addprefix $(O)/test/,conform test_cuda_models test_cuda_ranks)
GPU_BENCH := $(addprefix $(O)/bench/,bench_gpu bench_gpu_copies gpu_limits)
dist:
	@tools/setup $(if $(CUDA),--gpu)
	@$(MAKE) --no-print-directory -j$(JOBS) all $(if $(CUDA),$(GPU_TESTS) $(GPU_BENCH))
	@tools/make-dist
gpu-first check-gpu:
	@tools/setup --gpu
	@$(MAKE) --no-print-directory -j$(JOBS) all cuda $(GPU_TESTS) $(GPU_BENCH)
	@tools/gpu-first $(if $(filter check-gpu,$@),--only check --seconds 7200)
$(O)/bench/gpu_limits: tests/bench/gpu_limits.cu
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	@$(NVCC) -std=c++20 -O3 $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) -o $@ $<
.PHONY: bench-gpu
bench-gpu: programs cuda $(GPU_BENCH)
	@tools/bench-gpu

include tests/bench/bench.mk

clean:
	rm -rf build build-address build-thread build-fuzz build-libfuzzer build-mutants build-coverage

-include $(shell find $(O) -path '$(O)/venv*' -prune -o -type f -name '*.d' -print 2>/dev/null)
