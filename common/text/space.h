/* space.h - white space in model output between markers and JSON: the same as JSON's. */
#ifndef TEXT_SPACE_H
#define TEXT_SPACE_H

static inline int text_is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

#endif
