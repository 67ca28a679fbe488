/* Prints the first bytes of a file on a Nacre mount, read past the mount through libnacre, and the way they
 * took: nacre_example_hello /mnt/nacre/FILE [BYTES] C11; needs nothing but <nacre/nacre.h>. */
#include <fcntl.h>
#include <nacre/nacre.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, nacre_error_message());
  return 1;
}

static const char* const checked_by[] = {"nobody", "the CPU", "the GPU"};

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: %s FILE [BYTES]\n", argv[0]);
    return 2;
  }
  const size_t size = argc == 3 ? strtoul(argv[2], NULL, 10) : 256;
  char* memory = malloc(size);
  nacre_client client = {0};
  nacre_file file = {0};
  nacre_buffer buffer = {0};
  nacre_result result = NACRE_RESULT_INIT;
  if (nacre_client_from_path(argv[1], NULL, &client) != 0) return fail(argv[1]);
  if (nacre_file_open(client, argv[1], O_RDONLY, 0, &file) != 0) return fail("open");
  if (nacre_buffer_register(client, memory, size, &buffer) != 0) return fail("register");
  if (nacre_read(file, 0, buffer, 0, size, &result) != 0) return fail("read");
  fwrite(memory, 1, result.bytes, stdout);
  fprintf(stderr, "%llu bytes over %s, verified by %s\n", (unsigned long long)result.bytes, result.path,
          checked_by[result.verification]);
  if (nacre_client_close(client) != 0) return fail("close"); /* with its file and its buffer */
  free(memory);
  return 0;
}
