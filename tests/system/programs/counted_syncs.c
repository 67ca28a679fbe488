/* Preloaded before libcufile.so.0: counts what is synced, and lets it fail. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t id;
} nacre_file;

static atomic_int syncs, failure;

int test_syncs(void) { return syncs; }
void test_fail_syncs(int error) { failure = error; }

int nacre_file_sync(nacre_file file) {
  int (*real)(nacre_file) = (int (*)(nacre_file))dlsym(RTLD_NEXT, "nacre_file_sync");
  ++syncs;
  if (failure != 0) return failure;
  return real == NULL ? -1 : real(file);
}
