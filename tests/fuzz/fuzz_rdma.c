/* fuzz_rdma.c - messages of RDMA paths, and handles of leases (rdma_wire.h): what is read well, and
 * written again, has the same bytes. */
#include "daemons/messager/path/rdma_wire.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

FUZZ(rdma, PATH_SAY_MAX + 1)
{
	struct rdma_msg m;
	struct rdma_handle h;
	struct err err = {0};
	unsigned char out[PATH_SAY_MAX];
	int rc = rdma_msg_read(data, size, &m, &err);
	if (rc && !err.text[0])
		abort();
	if (rc == 0)
		fuzz_accepted();
	/* of a text, what is not printable is replaced */
	if (rc == 0 &&
	    (rdma_msg_write(&m, out) != size ||
	     memcmp(out, data,
	            m.kind == RDMA_RESET || m.kind == RDMA_REFUSE ? RDMA_HEAD_BYTES : size) != 0))
		abort();
	rc = rdma_handle_read(data, size, &h, &err);
	if (rc == 0) {
		rdma_handle_write(&h, out);
		if (memcmp(out, data, size) != 0)
			abort();
	}
	return 0;
}
