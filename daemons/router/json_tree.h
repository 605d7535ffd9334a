/* json_tree.h - how much memory JSON takes when it is read: its values may need 80 times the size
 * of the text ("[{},{},..."). */
#ifndef ROUTER_JSON_TREE_H
#define ROUTER_JSON_TREE_H

#include <stddef.h>

#define JSON_TREE_TIMES 96u          /* no text takes more than so many times its size, */
#define JSON_TREE_NESTED 524288u     /* and this: 2048 arrays within each other */

/* An upper bound of the bytes that jansson has allocated at once while it loads the text, whether
 * that is JSON or not. Reads each byte once. */
size_t json_tree_bytes(const char *text, size_t len);

#endif
