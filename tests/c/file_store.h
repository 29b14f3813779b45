/* A key-value store in a folder: one file per key, put in place by a rename. */
#ifndef FILE_STORE_H
#define FILE_STORE_H

#include <ferrocomm.h>

/* A store over `folder`, which exists. NULL-safe; `table->release` frees what this allocates.
 * Returns 0 when there is no memory. */
int file_store_open(const char* folder, fc_store_table* table);

/* How many stores were released so far. */
int file_store_released(void);

#endif
