/* Reads a file of a mount through libnacre, synchronously, asynchronously, in a batch of unaligned pieces and
 * through a queue, each time into a fresh buffer; the four have to be alike. Writes what it has read to OUT
 * and says which way it came. reads FILE OUT [--gpu] reads --write FILE BYTES     writes so many 'x' and ends
 * without closing anything */
#include <errno.h>
#include <fcntl.h>
#include <nacre/nacre.h>

#include "device.h"

enum { PIECE = 77777 };

static void check(int code, const char* what) {
  if (code == 0) return;
  fprintf(stderr, "%s: %s (%s)\n", what, strerror(code), nacre_error_message());
  exit(1);
}

static void read_batch(nacre_file file, nacre_buffer buffer, uint64_t size, nacre_result* last) {
  const size_t count = (size_t)((size + PIECE - 1) / PIECE);
  nacre_extent* extents = calloc(count, sizeof *extents);
  nacre_result* results = calloc(count, sizeof *results);
  for (size_t i = 0; i < count; ++i) {
    const nacre_extent extent = NACRE_EXTENT_INIT;
    const nacre_result result = NACRE_RESULT_INIT;
    extents[i] = extent;
    results[i] = result;
    extents[i].file = file;
    extents[i].buffer = buffer;
    extents[i].offset = extents[i].buffer_offset = i * PIECE;
    extents[i].length = size - i * PIECE < PIECE ? size - i * PIECE : PIECE;
  }
  check(nacre_readv(extents, count, NULL, results), "nacre_readv");
  *last = results[count - 1];
  free(extents);
  free(results);
}

static void read_async(nacre_file file, nacre_buffer buffer, uint64_t size, nacre_result* result) {
  nacre_extent extent = NACRE_EXTENT_INIT;
  nacre_future future = {0};
  extent.file = file;
  extent.buffer = buffer;
  extent.length = size;
  check(nacre_readv_async(&extent, 1, NULL, &future), "nacre_readv_async");
  check(nacre_future_wait(future, -1), "nacre_future_wait");
  check(nacre_future_results(future, result, 1), "nacre_future_results");
  check(nacre_future_free(future), "nacre_future_free");
}

/* Pieces through a queue that has room for few of them at once, as a loader does. */
static void read_by_queue(nacre_client client, nacre_file file, nacre_buffer buffer, uint64_t size) {
  enum { DEPTH = 16 };
  const uint64_t count = (size + PIECE - 1) / PIECE;
  nacre_queue queue = {0};
  check(nacre_queue_open(client, DEPTH, &queue), "nacre_queue_open");
  for (uint64_t begun = 0, ended = 0; ended < count;) {
    nacre_completion done[DEPTH];
    size_t reaped = 0, taken = 1;
    while (begun < count && begun - ended < DEPTH) {
      nacre_request request = NACRE_REQUEST_INIT;
      request.user_data = begun;
      request.file = file;
      request.buffer = buffer;
      request.offset = request.buffer_offset = begun * PIECE;
      request.length = size - request.offset < PIECE ? size - request.offset : PIECE;
      check(nacre_queue_submit(queue, &request, 1, NULL, &taken), "nacre_queue_submit");
      ++begun;
    }
    check(nacre_queue_reap(queue, 1, -1, done, DEPTH, &reaped), "nacre_queue_reap");
    for (size_t i = 0; i < reaped; ++i) {
      const uint64_t left = size - done[i].user_data * PIECE;
      if (done[i].result != (int64_t)(left < PIECE ? left : PIECE))
        check(done[i].result < 0 ? (int)-done[i].result : EIO, "a read of the queue");
    }
    ended += reaped;
  }
  check(nacre_queue_close(queue), "nacre_queue_close");
}

/* The file's bytes, read in one of four ways. */
static char* read_file(nacre_client client, nacre_file file, uint64_t size, int way, nacre_result* result) {
  char* bytes = malloc(size);
  void* memory = device_allocate(size);
  nacre_buffer buffer = {0};
  check(nacre_buffer_register(client, memory, size, &buffer), "nacre_buffer_register");
  if (way == 0) check(nacre_read(file, 0, buffer, 0, size, result), "nacre_read");
  if (way == 1) read_async(file, buffer, size, result);
  if (way == 2) read_batch(file, buffer, size, result);
  if (way == 3) read_by_queue(client, file, buffer, size);
  check(nacre_buffer_release(buffer), "nacre_buffer_release");
  device_copy_out(bytes, memory, size);
  device_free(memory);
  return bytes;
}

static int write_and_leave(const char* path, size_t size) {
  nacre_client client = {0};
  nacre_file file = {0};
  nacre_buffer buffer = {0};
  char* memory = malloc(size);
  memset(memory, 'x', size);
  check(nacre_client_from_path(path, NULL, &client), path);
  check(nacre_file_open(client, path, O_WRONLY, 0, &file), path);
  check(nacre_buffer_register(client, memory, size, &buffer), "nacre_buffer_register");
  check(nacre_write(file, 0, buffer, 0, size, NULL), "nacre_write");
  return 0; /* exit() sends it */
}

int main(int argc, char** argv) {
  nacre_client client = {0};
  nacre_file file = {0};
  uint64_t size = 0;
  if (argc == 4 && strcmp(argv[1], "--write") == 0)
    return write_and_leave(argv[2], strtoul(argv[3], NULL, 10));
  if (argc == 4 && strcmp(argv[3], "--gpu") == 0) device_open();
  check(nacre_client_from_path(argv[1], NULL, &client), argv[1]);
  check(nacre_file_open(client, argv[1], O_RDONLY, 0, &file), argv[1]);
  check(nacre_file_size(file, &size), "nacre_file_size");
  nacre_result result = NACRE_RESULT_INIT;
  char* first = read_file(client, file, size, 0, &result);
  for (int way = 1; way <= 3; ++way) {
    char* again = read_file(client, file, size, way, &result);
    if (memcmp(first, again, size) != 0) return fprintf(stderr, "way %d reads something else\n", way), 1;
    free(again);
  }
  FILE* out = fopen(argv[2], "wb");
  if (out == NULL || fwrite(first, 1, size, out) != size || fclose(out) != 0) return perror(argv[2]), 1;
  free(first);
  printf("%llu bytes over %s, verified by %u\n", (unsigned long long)size, result.path, result.verification);
  check(nacre_client_close(client), "nacre_client_close");
  return 0;
}
