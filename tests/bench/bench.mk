# bench.mk - `make bench` and its parts, `make isolation`, `make soak`. Figures go to the screen; BENCH_WRITE=1 also renews their sections of tests/bench/RESULTS.md.
#   THREADS=n  TURNS=5  REQUESTS=600  SECONDS=12  PEER=folder of a venv that has llama-cpp-python already
#   LAYOUT=1p2d  SOAK_SECONDS=60  SOAK_STREAMS=64  SOAK_LEAVE=0 (percent of clients that go away)  SOAK_TIERS=1 (tiers, preemption)  QUICK=1 (the tiny model)
BENCHES := bench-peer bench-cpu bench-fp8 bench-embeddings bench-server bench-handover bench-hosts bench-kv bench-storage bench-index bench-redis bench-path \
	bench-path-shaped bench-suite bench-idle bench-interference bench-prefill-sched bench-prepare bench-policies bench-blocked-peer bench-reserve bench-tiers \
	bench-tiers-idle bench-spec bench-overlap bench-preempt bench-text
.PHONY: bench $(BENCHES) isolation soak
PEER     ?= build/venv-peer
PEER_REQ := llama-cpp-python==0.3.36
PEER_SERVER ?= build/peer-server/bin/llama-server
BENCH_MODEL = $$(test -n "$(MODEL)" && echo "$(MODEL)" || { test -n "$$PD_MODEL" && echo "$$PD_MODEL" || tools/fetch-model; })

# programs that they call: what is missing is installed, or named
needs-root:
	@[ "$$(id -u)" = 0 ] || { echo "network namespaces need root: run make as root" >&2; exit 1; }
needs-%:
	@command -v $* >/dev/null || tools/setup --bench
bench-hosts: | needs-root
$(BENCHES) soak chaos: | deps-ok needs-python3
bench-hosts bench-path bench-path-shaped: | needs-iperf3
bench-storage: | needs-fio
bench-redis bench-tiers $(if $(SOAK_TIERS),soak): | needs-redis-server

bench: bench-handover bench-kv bench-peer bench-suite

build/venv-peer/bin/python:
	@command -v g++ >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || \
		{ echo "the peer needs a C++ compiler and venv: apt-get install -y g++ python3-venv (as root), or PEER=folder of a venv that has it" >&2; exit 1; }
	@echo "building the peer natively: $(PEER_REQ) (some minutes)"
	@python3 -m venv build/venv-peer
	@CMAKE_ARGS=-DGGML_NATIVE=ON CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/venv-peer/bin/pip install -q --disable-pip-version-check --no-binary llama-cpp-python $(PEER_REQ) || \
		{ rm -rf build/venv-peer; echo "the peer could not be built: the lines above say why; PEER=folder names a venv that has it" >&2; exit 1; }

# its server, and its benchmark, from the same sources: the Python package has neither. What an interrupted build has done is kept.
PEER_CMAKE = -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
	-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
build/peer-server/src: | $(PEER)/bin/python
	@rm -rf build/peer-server && mkdir -p build/peer-server/part
	@$(PEER)/bin/pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d build/peer-server $(PEER_REQ)
	@tar xzf build/peer-server/llama_cpp_python-*.tar.gz -C build/peer-server/part --strip-components=1 --wildcards '*/vendor/llama.cpp/*'
	@rm build/peer-server/llama_cpp_python-*.tar.gz && mv build/peer-server/part $@
build/peer-server/bin/llama-server: | build/peer-server/src
	@echo "building llama-server of $(PEER_REQ) natively (some minutes)"
	@$(PEER)/bin/pip install -q --disable-pip-version-check cmake ninja
	@{ $(PEER)/bin/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(PEER))/bin/ninja -S build/peer-server/src/vendor/llama.cpp -B build/peer-server $(PEER_CMAKE) && \
		$(PEER)/bin/cmake --build build/peer-server -j$(JOBS) --target llama-server llama-bench; } >build/peer-server.log 2>&1 || \
		{ tail -n 5 build/peer-server.log; echo "llama-server could not be built: build/peer-server.log; PEER_SERVER=file names one, PEER_SERVER= leaves it out" >&2; exit 1; }

bench-peer: $(PEER)/bin/python $(O)/bench/bench_engine
	@model=$(BENCH_MODEL) && $(PEER)/bin/python tests/bench/bench_peer.py $(if $(THREADS),-t $(THREADS)) $(if $(TURNS),-n $(TURNS)) "$$model" && \
		$(PEER)/bin/python tests/bench/bench_peer.py --cpu --tests pp512,tg1,tg16 $(if $(TURNS),-n $(TURNS)) "$$model"
# tokenizer, templates, constrained output against the programs that others use for them: TURNS=5 ONLY=tokenizer; packages go to build/venv-text
bench-text: $(O)/bench/bench_tokenizer $(O)/bench/bench_template $(O)/bench/bench_grammar build/venv-text/bin/python
	@model=$(BENCH_MODEL) && build/venv-text/bin/python tests/bench/bench_text.py $(if $(TURNS),-n $(TURNS)) $(if $(ONLY),--only $(ONLY)) "$$model"
build/venv-text/bin/python: tests/bench/requirements-text.txt
	@python3 -c 'import ensurepip' 2>/dev/null || { echo "the peers need venv: apt-get install -y python3-venv (as root)" >&2; exit 1; }
	@python3 -m venv build/venv-text
	@build/venv-text/bin/pip install -q --disable-pip-version-check -r tests/bench/requirements-text.txt && touch $@
# the CPU engine on eight files (2 GB in the user's cache, made once; BF16 with each type of activations) against llama.cpp and against limits measured beside it: ONLY=smollm2/Q4_1 TURNS=5
# CPU_TIME=1 (one thread, processor time: for a machine that others use too) LLAMA_BENCH=program of another build of the peer, run beside
bench-cpu: $(PEER)/bin/python $(O)/bench/bench_engine $(O)/bench/bench_limits
	@model=$(BENCH_MODEL) && $(PEER)/bin/python tests/bench/bench_cpu.py $(if $(THREADS),-t $(THREADS)) $(if $(TURNS),-n $(TURNS)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(CPU_TIME),--cpu) $(LLAMA_BENCH:%=--llama-bench %) "$$model"
# FP8 weights beside other types and the bandwidth of reading: TURNS=9 VARIANT=plain
bench-fp8: $(O)/bench/bench_kernels $(O)/bench/bench_limits
	@python3 tests/bench/bench_fp8.py $(if $(TURNS),-n $(TURNS)) $(VARIANT)
# embeddings beside prefill of the same prompts: TURNS=3 INPUTS=64 TOKENS=512
bench-embeddings: programs
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_embeddings.py $(if $(TURNS),-n $(TURNS)) $(INPUTS:%=--inputs %) $(TOKENS:%=--tokens %) "$$model"
# the whole suite against llama.cpp's two servers, the same requests: REQUESTS=200 CONCURRENCY=1,8,32
bench-server: all $(PEER)/bin/python $(PEER_SERVER)
	@$(PEER)/bin/python -c 'import uvicorn, sse_starlette, starlette_context, pydantic_settings' 2>/dev/null || \
		$(PEER)/bin/pip install -q --disable-pip-version-check 'llama-cpp-python[server]$(PEER_REQ:llama-cpp-python%=%)'
	@model=$(BENCH_MODEL) && $(PEER)/bin/python tests/bench/bench_server.py $(if $(REQUESTS),-n $(REQUESTS)) $(if $(CONCURRENCY),--concurrency $(CONCURRENCY)) \
		$(PEER_SERVER:%=--llama-server %) "$$model"
# as root
bench-hosts: programs
	@tools/setup --hosts
	@model=$(BENCH_MODEL) && /usr/bin/python3 tests/bench/bench_hosts.py $(if $(REQUESTS),-n $(REQUESTS)) "$$model"

bench-handover: all $(O)/bench/bench_router $(O)/bench/bench_transfer
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_handover.py $(if $(REQUESTS),-n $(REQUESTS)) "$$model"
bench-preempt: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_preempt.py "$$model"
bench-kv: all $(O)/bench/bench_transfer
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_kv.py "$$model"
bench-storage: $(O)/bench/bench_storage
	@python3 tests/bench/bench_storage.py $(if $(TURNS),--turns $(TURNS))
# the Redis tier against a plain local socket and against hiredis's own calls to the same server: TURNS=7
$(O)/bench/bench_storage_redis: tests/bench/bench_storage_redis.c $(O)/libstorage.a $(ALLLIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) -MMD -MP -MF $@.d -o $@ $< -Wl,--start-group $(O)/libstorage.a $(ALLLIBS) -Wl,--end-group $(LDLIBS)
# KV over TCP between two messagers, against iperf3 in the same run: TURNS=5 SECONDS=3
$(O)/bench/bench_path: tests/bench/bench_path.c $(O)/libmessager.a $(ALLLIBS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ALLFLAGS) -MMD -MP -MF $@.d -o $@ $< -Wl,--start-group $(O)/libmessager.a $(ALLLIBS) -Wl,--end-group $(LIBS_pdmessagerd) $(LDLIBS)
bench-path: $(O)/bench/bench_path
	@python3 tests/bench/bench_path.py $(if $(TURNS),-n $(TURNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(O)/bench/bench_path
# the same through delay and loss, in a qemu guest: CASES=5/40/cubic/plain,... (ms each way/Mbit/s/congestion control/plain or encrypted) CONNECTIONS=1,2,4 MTU=9000 TURNS=3 SECONDS=4
bench-path-shaped: $(O)/bench/bench_path
	@tools/setup --rdma
	@python3 tests/bench/bench_path_shaped.py $(if $(TURNS),-n $(TURNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(CASES),--cases $(CASES)) \
		$(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(MTU),--mtu $(MTU)) $(O)/bench/bench_path
# the disk tier with many blocks: BLOCKS=1000000
bench-index: $(O)/bench/bench_storage
	@python3 tests/bench/bench_index.py $(if $(BLOCKS),--blocks $(BLOCKS))
bench-redis: $(O)/bench/bench_storage_redis
	@python3 tests/bench/bench_redis.py $(if $(TURNS),-n $(TURNS)) $(O)/bench/bench_storage_redis
bench-idle: all
	@python3 tests/bench/bench_idle.py $(if $(SECONDS),--seconds $(SECONDS))
bench-suite: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_suite.py $(if $(THREADS),-t $(THREADS)) $(if $(SECONDS),--seconds $(SECONDS)) "$$model"
# tokens of running streams while long prompts arrive: 1p1d against mixed; needs cores 0 and 1 for itself
bench-interference: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_interference.py $(if $(SECONDS),--seconds $(SECONDS)) "$$model"
bench-prefill-sched: all faulty
	@python3 tests/bench/bench_prefill_sched.py
bench-prepare: all faulty
	@python3 tests/bench/bench_prepare.py $(if $(REQUESTS),-n $(REQUESTS))

# the router's placement policies on a slice of a published trace, 4P4D simulated: POLICIES=kv_aware,random SLICE=other
bench-policies: all
	@python3 tests/bench/bench_policies.py $(if $(SLICE),--slice $(SLICE)) $(if $(POLICIES),--policies $(POLICIES)) $(if $(REQUESTS),-n $(REQUESTS))
# requests to one decode worker while others wait for another that has no room, 1P2D simulated: TURNS=pairs
bench-blocked-peer: all
	@python3 tests/bench/bench_blocked_peer.py $(if $(TURNS),--pairs $(TURNS)) $(if $(SECONDS),--seconds $(SECONDS))
# the decode worker's room for growth: the share that adapts, from several starts, 1P1D simulated: RATIOS=adapt,0,0.7 SECONDS=7
bench-reserve: all
	@python3 tests/bench/bench_reserve.py $(if $(RATIOS),--ratios $(RATIOS)) $(if $(SECONDS),--seconds $(SECONDS))
# conversations whose KV is four times the pool over more and more tiers, and a long prefix from each tier against computing it: ONLY=conversations or prefix
bench-tiers: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_tiers.py $(if $(ONLY),--only $(ONLY)) "$$model"
# throughput with tiers in which nothing is ever found, against none: PAIRS=7 REQUESTS=7
bench-tiers-idle: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_tiers_idle.py $(if $(PAIRS),--pairs $(PAIRS)) $(if $(REQUESTS),-n $(REQUESTS)) "$$model"

# how long the device waits for the host between steps, with overlap_steps and without: STREAMS=1,16,64 TURNS=3 SPECULATIVE=ngram BACKEND=cuda MODEL=...
bench-overlap: all
	@python3 tests/bench/bench_overlap.py $(if $(BACKEND),--backend $(BACKEND)) $(if $(STREAMS),--streams $(STREAMS)) $(if $(TURNS),-n $(TURNS)) $(SPECULATIVE:%=--speculative %) $(MODEL)

# prompt look-up against none, real model: THREADS=0 (all cores) TURNS=3
bench-spec: all
	@model=$(BENCH_MODEL) && python3 tests/bench/bench_spec.py $(if $(THREADS),-t $(THREADS)) $(if $(TURNS),-n $(TURNS)) "$$model"

# what one client can cost another, on this build or on the programs in BIN=folder: ONLY="flood handshakes" SECONDS=8 (a phase; a row has two)
isolation: programs
	@tools/setup --test
	@model=$(BENCH_MODEL) && /usr/bin/python3 tests/isolation/isolation.py $(if $(ONLY),--only "$(ONLY)") $(if $(SECONDS),--seconds $(SECONDS)) $(if $(BIN),--bin $(BIN)) "$$model"

soak: all
	@model=$(if $(QUICK),,$(BENCH_MODEL)) && python3 tests/soak/soak.py $(if $(QUICK),--quick,--model "$$model") $(if $(LAYOUT),--layout $(LAYOUT)) \
		$(if $(SOAK_SECONDS),--seconds $(SOAK_SECONDS)) $(if $(SOAK_STREAMS),--streams $(SOAK_STREAMS)) $(if $(SOAK_LEAVE),--leave $(SOAK_LEAVE)) $(if $(SOAK_TIERS),--tiers) $(if $(THREADS),--threads $(THREADS))
