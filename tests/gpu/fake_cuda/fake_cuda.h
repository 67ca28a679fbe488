/* A CUDA driver without a GPU: libnacre-fake-cuda.so has the functions of libcuda.so.1 that Nacre uses, and
 * those below. Name it in NACRE_CUDA_LIBRARY (or link it) and everything runs through the same code as with a
 * GPU.
 *
 * Device memory is mapped twice: at the address that programs get, where nobody may touch it (a stray access
 * of the CPU kills the process at once), and at an alias, with which the fake's copy engine and kernels work.
 * Copies run late, on a thread of their stream, so that a use before the end shows.
 *
 * Knobs, "name=value,name=value", in the environment variable NACRE_FAKE_CUDA or by
 * nacre_fake_cuda_configure: devices=1            number of GPUs driver=13000         version of the driver;
 * it has the functions of that version only init=0               what cuInit answers (a CUresult) delay=20
 * microseconds that each piece of work in a stream waits first segments=1           allocations consist of so
 * many adjacent ones reuse=1              freed addresses are given out again first (with another buffer id)
 *   kernels=1            0: modules cannot be loaded
 *   read_only_register=1 0: only writable memory can be registered
 *   register_error=0     what cuMemHostRegister answers
 *   dma_buf=1            0: the attribute says that there is none
 *   export_error=0       what cuMemGetHandleForAddressRange answers
 *   bar1=0               what NVML says of it, in bytes; 0: nothing
 *   ordered=1            0: what NICs write needs a flush
 *   queues=0             hardware queues that streams share (streams.h); 0: each stream has its own
 *   room=0               so much work, not yet begun, is all that a stream takes; who enqueues more waits,
 *                        and with them all who enqueue anything in that context; 0: any amount
 *   allocations_wait=0   1: memory is allocated, and unregistered, when all streams of the context have done
 *                        their work
 *   damage=0             so many of the next copies to a device change a byte on their way
 *   memory=0             limit of device memory in bytes; 0: none
 *   pinned=0             limit of pinned memory that is allocated, in bytes; 0: none
 *   copy_errors=-1       after so many copies each one is refused (CUDA_ERROR_INVALID_VALUE)
 *   device_error=-1      after so many copies the device breaks (CUDA_ERROR_ILLEGAL_ADDRESS, for ever)
 * devices, driver and init matter when a program opens the library.
 */
#ifndef NACRE_FAKE_CUDA_H
#define NACRE_FAKE_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or -1 for a knob that does not exist. */
int nacre_fake_cuda_configure(const char* knobs);

/* Where the bytes of device memory can be read and written; null if it is none. */
void* nacre_fake_cuda_alias(const void* device_address);

/* Of this process so far: "copies", "batches" (calls of cuMemcpyBatchAsync), "launches", "memsets",
 * "flushes", "queries" (calls of cuPointerGetAttributes); and now: "allocations", "pinned" (allocations),
 * "registered", "contexts" (retained), "streams", "events". -1: no such. */
long nacre_fake_cuda_count(const char* what);

/* Where in its memory a dma-buf that the fake exported begins: what an emulated registration maps. -1: no
 * descriptor of the fake. */
long nacre_fake_cuda_dma_buf_offset(int fd);

#ifdef __cplusplus
}
#endif

#endif
