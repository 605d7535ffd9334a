/* plan.c - services for planning functions: memory, launches, errors. See plan.h. */
#include "kernels/cuda/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

int plan_fail(struct plan *p, int code, const char *fmt, ...)
{
	if (p->rc)
		return p->rc;
	char text[300];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	cuda_fail(p->dev, code, "%s: %s", p->op ? kern_op_name(p->op->kind) : "a program", text);
	return p->rc = code;
}

void *plan_room(struct plan *p, enum plan_room room, size_t bytes)
{
	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (p->counting && bytes > p->room[room])
		p->room[room] = bytes;
	return p->memory ? p->memory + p->room_at[room] : (unsigned char *)(uintptr_t)ALIGN;
}

void *plan_keep(struct plan *p, const void *data, size_t bytes)
{
	size_t at = p->kept_at;
	p->kept_at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (p->counting) {
		if (p->kept_at > p->kept)
			p->kept = p->kept_at;
		return (void *)(uintptr_t)ALIGN;
	}
	if (data && !p->rc) {
		int rc = cuda_check(p->dev, cudaMemcpy(p->memory + at, data, bytes, cudaMemcpyDefault),
		                    "writing a program's constants");
		p->rc = rc;
	}
	return p->memory + at;
}

/* A new cleared launch; NULL when counting or after an error. */
static struct launch *launch_new(struct plan *p)
{
	if (p->rc || p->counting)
		return NULL;
	if (p->launches == p->launch_room) {
		size_t room = p->launch_room ? 2 * p->launch_room : 64;
		struct launch *grown = realloc(p->launch, room * sizeof *grown);
		if (!grown) {
			plan_fail(p, KERN_ENOMEM, "out of memory for %zu launches", room);
			return NULL;
		}
		p->launch = grown;
		p->launch_room = room;
	}
	struct launch *l = &p->launch[p->launches++];
	memset(l, 0, sizeof *l);
	return l;
}

void plan_library(struct plan *p, enum launch_by by, const void *args, size_t args_bytes)
{
	_Static_assert(sizeof(struct lt_product) <= LAUNCH_ARGS &&
	                   sizeof(struct nccl_call) <= LAUNCH_ARGS,
	               "a launch holds its arguments");
	struct launch *l = launch_new(p);
	if (!l)
		return;
	l->by = by;
	l->args_bytes = (uint32_t)args_bytes;
	memcpy(l->args, args, args_bytes);
}

struct launch *plan_launch(struct plan *p, const char *name, const void *kernel, uint32_t grid_x,
                           uint32_t grid_y, uint32_t threads, size_t shared, const void *args,
                           size_t args_bytes)
{
	enum { GRID_Y_MAX = 65535 };
	if (p->rc)
		return NULL;
	if (args_bytes > LAUNCH_ARGS || grid_y > GRID_Y_MAX || !grid_x || !grid_y ||
	    grid_x > INT32_MAX || shared > (size_t)p->dev->shared_max) {
		plan_fail(p, KERN_EINVAL,
		          "kernel %s with a grid of %u x %u, %zu bytes of shared memory: limits are %d, %d "
		          "and %d",
		          name, grid_x, grid_y, shared, INT32_MAX, GRID_Y_MAX, p->dev->shared_max);
		return NULL;
	}
	struct launch *l = launch_new(p);
	if (!l)
		return NULL;
	*l = (struct launch){.kernel = kernel,
	                     .name = name,
	                     .grid = {grid_x, grid_y},
	                     .threads = threads,
	                     .shared = (uint32_t)shared,
	                     .args_bytes = (uint32_t)args_bytes};
	memcpy(l->args, args, args_bytes);
	return l;
}
