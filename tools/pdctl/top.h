/* top.h - shared by the parts of `pdctl top`: figures (view.c), their text (screen.c), the loop
 * (top.c). */
#ifndef PDCTL_TOP_H
#define PDCTL_TOP_H

#include "watch.h"

/* The figures of the last interval and of now, as `top --json` prints them. A figure that is not
 * known is null. The caller frees it. */
json_t *top_view(struct watcher *w, const struct options *o);

struct screen {
	unsigned rows, columns; /* 0: unlimited */
	int moves;              /* draw over the screen before; else print lines */
	int colour, keys;       /* keys: say which there are */
};
void top_draw(const json_t *view, const struct screen *s);

#endif
