/* space.h - white space between the parts of what a model writes: that of JSON. */
#ifndef TEXT_SPACE_H
#define TEXT_SPACE_H

static inline int text_is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

#endif
