/* letters_model.h - the golden model with a vocabulary, for constraints: id 3 + i is the i-th
 * letter, 2 ends an answer. And constraints that are costly to compile. */
#ifndef TESTS_LETTERS_MODEL_H
#define TESTS_LETTERS_MODEL_H

#include "tempdir.h"

#include <check.h>

static void letters_tokenizer(const char *dir)
{
	char path[TEST_FOLDER_BYTES + 32];
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs("{\"added_tokens\":[{\"id\":0,\"content\":\"<pad>\",\"special\":true},{\"id\":1,"
	      "\"content\":\"<s>\",\"special\":true},"
	      "{\"id\":2,\"content\":\"</"
	      "s>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
	      "false},"
	      "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{",
	      f);
	for (int i = 0; i < 26; i++)
		fprintf(f, "%s\"%c\":%d", i ? "," : "", 'a' + i, 3 + i);
	fputs("},\"merges\":[]}}", f);
	ck_assert_int_eq(fclose(f), 0);
}

/* The option that names it. */
static inline const char *letters_model(void)
{
	static char option[TEST_FOLDER_BYTES + 16];
	char dir[TEST_FOLDER_BYTES], command[TEST_FOLDER_BYTES + 160];
	test_folder(dir, "letters");
	snprintf(command, sizeof command,
	         "ln -s \"$PWD\"/tests/data/golden/llama/config.json "
	         "\"$PWD\"/tests/data/golden/llama/model.safetensors %s",
	         dir);
	ck_assert_int_eq(system(command), 0);
	letters_tokenizer(dir);
	snprintf(option, sizeof option, "model=%s", dir);
	return option;
}

/* 90,000 nodes: some ten milliseconds of compiling, and two megabytes. Each k another one; by
 * turns from a few buffers. */
static inline const char *letters_costly(int k)
{
	static char text[8][128];
	snprintf(text[k % 8], sizeof text[0],
	         "a{%d}(a|b){0,10000}(ab|a){0,10000}(b|aa){0,10000}(bb|ba){0,10000}", k + 1);
	return text[k % 8];
}

#endif
