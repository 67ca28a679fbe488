/* Memory for the programs beside it: malloc's, or a GPU's through the driver that is there or the tests' fake
 * one. C11 and C++. */
#ifndef NACRE_TESTS_DEVICE_H
#define NACRE_TESTS_DEVICE_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* device_library; /* null: host memory */

static void* device_function(const char* name) {
  void* found = dlsym(device_library, name);
  if (found == NULL) {
    fprintf(stderr, "the driver has no %s\n", name);
    exit(3);
  }
  return found;
}

static void device_check(int result, const char* what) {
  if (result == 0) return;
  fprintf(stderr, "%s: CUDA error %d\n", what, result);
  exit(3);
}

static void device_open(void) {
  const char* named = getenv("NACRE_CUDA_LIBRARY");
  int device = 0;
  void* context = NULL;
  device_library = dlopen(named == NULL ? "libcuda.so.1" : named, RTLD_NOW);
  if (device_library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  device_check(((int (*)(unsigned))device_function("cuInit"))(0), "cuInit");
  device_check(((int (*)(int*, int))device_function("cuDeviceGet"))(&device, 0), "cuDeviceGet");
  device_check(((int (*)(void**, int))device_function("cuDevicePrimaryCtxRetain"))(&context, device),
               "cuDevicePrimaryCtxRetain");
  device_check(((int (*)(void*))device_function("cuCtxPushCurrent_v2"))(context), "cuCtxPushCurrent");
}

static void* device_allocate(size_t size) {
  uint64_t address = 0;
  if (device_library == NULL) return malloc(size);
  device_check(((int (*)(uint64_t*, size_t))device_function("cuMemAlloc_v2"))(&address, size), "cuMemAlloc");
  return (void*)(uintptr_t)address;
}

static void device_free(void* memory) {
  if (device_library == NULL) {
    free(memory);
    return;
  }
  device_check(((int (*)(uint64_t))device_function("cuMemFree_v2"))((uint64_t)(uintptr_t)memory),
               "cuMemFree");
}

static void device_copy_out(void* to, const void* from, size_t size) {
  if (device_library == NULL) {
    memcpy(to, from, size);
    return;
  }
  device_check(((int (*)(void*, uint64_t, size_t, void*))device_function("cuMemcpyDtoHAsync_v2"))(
                   to, (uint64_t)(uintptr_t)from, size, NULL),
               "cuMemcpyDtoHAsync");
  device_check(((int (*)(void*))device_function("cuStreamSynchronize"))(NULL), "cuStreamSynchronize");
}

#endif
