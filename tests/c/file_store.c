#define _POSIX_C_SOURCE 200809L
#include "file_store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  char* folder;
} file_store;

static int released;

/* The file of a key: letters and digits stay, other bytes become %xx. */
static void path_of(const file_store* store, const char* key, size_t key_len, char out[PATH_MAX]) {
  size_t at = (size_t)snprintf(out, PATH_MAX, "%s/", store->folder);
  for (size_t i = 0; i < key_len && at + 4 < PATH_MAX; i++) {
    unsigned char byte = (unsigned char)key[i];
    int plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                (byte >= '0' && byte <= '9');
    at += (size_t)snprintf(out + at, PATH_MAX - at, plain ? "%c" : "%%%02x", byte);
  }
}

static fc_status fail(fc_status status, const char* doing, const char* path, fc_store_sink sink,
                      void* sink_ctx) {
  char text[PATH_MAX + 128];
  int length = snprintf(text, sizeof text, "%s %s: %s", doing, path, strerror(errno));
  size_t shown = length < (int)sizeof text ? (size_t)length : sizeof text - 1;
  sink(sink_ctx, NULL, 0, text, shown);
  return status;
}

static fc_status store_set(void* ctx, const char* key, size_t key_len, const uint8_t* value,
                           size_t value_len, fc_store_sink sink, void* sink_ctx) {
  char path[PATH_MAX];
  char fresh[PATH_MAX + 32];
  path_of(ctx, key, key_len, path);
  snprintf(fresh, sizeof fresh, "%s.%ld~", path, (long)getpid());
  FILE* file = fopen(fresh, "wb");
  if (file == NULL) {
    return fail(FC_ERR_STORE, "open", fresh, sink, sink_ctx);
  }
  size_t written = fwrite(value, 1, value_len, file);
  if (fclose(file) != 0 || written != value_len) {
    return fail(FC_ERR_STORE, "write", fresh, sink, sink_ctx);
  }
  if (rename(fresh, path) != 0) {
    return fail(FC_ERR_STORE, "rename", fresh, sink, sink_ctx);
  }
  return FC_OK;
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static fc_status answer_with(FILE* file, const char* path, fc_store_sink sink, void* sink_ctx) {
  uint8_t value[65536];
  size_t length = fread(value, 1, sizeof value, file);
  int broken = ferror(file) || !feof(file);
  fclose(file);
  if (broken) {
    return fail(FC_ERR_STORE, "read", path, sink, sink_ctx);
  }
  sink(sink_ctx, value, length, NULL, 0);
  return FC_OK;
}

static fc_status store_get(void* ctx, const char* key, size_t key_len, int64_t timeout_ns,
                           fc_store_sink sink, void* sink_ctx) {
  char path[PATH_MAX];
  path_of(ctx, key, key_len, path);
  int64_t begin = now_ns();
  for (;;) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) {
      return answer_with(file, path, sink, sink_ctx);
    }
    if (errno != ENOENT) {
      return fail(FC_ERR_STORE, "open", path, sink, sink_ctx);
    }
    if (now_ns() - begin >= timeout_ns) {
      errno = ETIMEDOUT;
      return fail(FC_ERR_STORE_TIMEOUT, "wait for", path, sink, sink_ctx);
    }
    /* A folder has no portable event for a new file; a millisecond is short enough. */
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

static fc_status store_remove(void* ctx, const char* key, size_t key_len, fc_store_sink sink,
                              void* sink_ctx) {
  char path[PATH_MAX];
  path_of(ctx, key, key_len, path);
  if (unlink(path) != 0 && errno != ENOENT) {
    return fail(FC_ERR_STORE, "remove", path, sink, sink_ctx);
  }
  return FC_OK;
}

static void store_release(void* ctx) {
  file_store* store = ctx;
  free(store->folder);
  free(store);
  released++;
}

int file_store_open(const char* folder, fc_store_table* table) {
  file_store* store = malloc(sizeof *store);
  char* copy = malloc(strlen(folder) + 1);
  if (store == NULL || copy == NULL) {
    free(store);
    free(copy);
    return 0;
  }
  strcpy(copy, folder);
  store->folder = copy;
  *table = (fc_store_table){
      .size = sizeof *table,
      .ctx = store,
      .set = store_set,
      .get = store_get,
      .remove = store_remove,
      .release = store_release,
  };
  return 1;
}

int file_store_released(void) { return released; }
