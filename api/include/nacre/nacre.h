/* libnacre: files of a Nacre filesystem read into, and written from, host or GPU memory.
 *
 *   nacre_client client; nacre_file file; nacre_buffer buffer;
 *   nacre_result result = NACRE_RESULT_INIT;
 *   nacre_client_from_path("/mnt/nacre/x", NULL, &client);
 *   nacre_file_open(client, "/mnt/nacre/x", O_RDONLY, 0, &file);
 *   nacre_buffer_register(client, pointer, size, &buffer);
 *   nacre_read(file, offset, buffer, 0, size, &result);
 *
 * Errors: functions return 0 or an errno value; nacre_error_message() has the reason in words. Nothing
 * throws.
 *
 * Handles are numbers, given by value and never used again: one that was closed, or never was one, is
 * answered with EBADF, whatever other threads do meanwhile. {0} is no handle.
 *
 * Threads: every function may be called from any thread at any time.
 *
 * Memory: the library keeps no pointer of the caller's but to the memory of registered buffers, and gives out
 * none that is to be freed.
 *
 * Units: sizes and offsets are bytes and need no alignment; times are nanoseconds.
 *
 * Structures that the caller provides begin with their size, which the _INIT macros set: so they can grow.
 *
 * Processes: a child forked after the first client was opened cannot use the library (EPERM): fork before, or
 * exec.
 *
 * Credentials: files are opened as the effective user, group and supplementary groups of the process at that
 * moment, by its own word: Nacre trusts whoever can reach its servers.
 *
 * libnacre(3) explains more. C++: nacre/nacre.hpp. */
#ifndef NACRE_NACRE_H
#define NACRE_NACRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NACRE_API_VERSION 1

typedef struct nacre_client {
  uint64_t id;
} nacre_client;
typedef struct nacre_file {
  uint64_t id;
} nacre_file;
typedef struct nacre_buffer {
  uint64_t id;
} nacre_buffer;
typedef struct nacre_future {
  uint64_t id;
} nacre_future;

/* "0.1.0". Valid for ever. */
const char* nacre_version(void);

/* Why the last call of this thread that failed did so. Valid until this thread's next call. */
const char* nacre_error_message(void);

/* ---- Clients: a connection to one filesystem ---- */

/* Flags of nacre_client_options: a server that is away for soft_timeout is an EIO (else it is waited for); do
 * not check what arrives against its checksums; ask for no leases, every operation goes to the servers. */
#define NACRE_CLIENT_SOFT UINT64_C(1)
#define NACRE_CLIENT_NO_VERIFY UINT64_C(2)
#define NACRE_CLIENT_NO_CACHE UINT64_C(4)

typedef struct nacre_client_options {
  uint64_t struct_size;
  uint64_t flags;
  const char* name;      /* in `nacre status`; NULL: the program's name and process id */
  const char* transport; /* "auto", "shm", "rdma", "tcp" as in nacre.toml(5); NULL: as the mount, or "auto" */
  int64_t soft_timeout;  /* 0: 60 s */
  uint64_t cache_bytes;  /* for nacre_write: twice what may be on its way to the servers; 0: 128 MiB */
  uint64_t threads;      /* of the library; 0: up to six */
} nacre_client_options;
#define NACRE_CLIENT_OPTIONS_INIT \
  { sizeof(nacre_client_options), 0, NULL, NULL, 0, 0, 0 }

/* By the address of the MDS: "host:port" or "unix:/path"; where several MDSes have copies of one MDT, all of
 * them with commas between. Paths of files then begin at the filesystem's root. `options` may be NULL.
 * ECONNREFUSED, ETIMEDOUT: no answer. Clients of one process with the same address and options share one
 * session. */
int nacre_client_open(const char* mds, const nacre_client_options* options, nacre_client* client);

/* By any path on a mount of the filesystem: address and data path are those of the mount. Paths of files are
 * then those of this process, absolute or relative, through the mount. ENOTSUP: the path is not on a Nacre
 * filesystem. */
int nacre_client_from_path(const char* path, const nacre_client_options* options, nacre_client* client);

/* Ends reads under way (ECANCELED), waits for writes, sends what was written, closes files and buffers of
 * this client, and ends the session if no other client shares it. The error is that of a write which could
 * not be sent. Also done at exit(), for at most 10 s. */
int nacre_client_close(nacre_client client);

/* Flags of nacre_capabilities: reads may end in GPU memory; nacre_read_on_stream works. */
#define NACRE_CAN_READ_TO_DEVICE UINT64_C(1)
#define NACRE_CAN_USE_STREAMS UINT64_C(2)

typedef struct nacre_capabilities {
  uint64_t struct_size;
  uint64_t flags;
  uint64_t gpus;    /* that the process sees */
  char device[512]; /* of GPU memory: the mechanism, or why there is none */
  char paths[1024]; /* a line for each server spoken to so far: "address path (why not a better one)" */
} nacre_capabilities;

/* Whether, and how, bytes get into GPU memory. The first call looks for GPUs, which may take seconds. */
int nacre_client_capabilities(nacre_client client, nacre_capabilities* capabilities);

/* ---- Files ---- */

/* flags: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND; mode counts with O_CREAT,
 * less the process's umask. The handle stays with the file that was opened, also if another takes its name.
 */
int nacre_file_open(nacre_client client, const char* path, int flags, uint32_t mode, nacre_file* file);
/* The file that a descriptor of this process is open on, on a mount of the client's filesystem, for reading,
 * writing and appending as the descriptor is. It is opened anew, as the process's user of now; the descriptor
 * may be closed afterwards. ENOTSUP, EXDEV: it is not on that filesystem. */
int nacre_file_from_fd(nacre_client client, int fd, nacre_file* file);
int nacre_file_size(nacre_file file, uint64_t* size);
int nacre_file_sync(nacre_file file); /* as fsync(2) */
/* Reads and writes under way go on. The error is that of an earlier write that could not be sent. */
int nacre_file_close(nacre_file file);

/* ---- Buffers: memory that bytes are read into or written from ---- */

/* Host or device memory: which, is found out from the address. It must stay allocated until the buffer is
 * released. EFAULT: not memory of this process; ENOTSUP: device memory that cannot be used, with what was
 * tried and what is missing. */
int nacre_buffer_register(nacre_client client, void* address, size_t size, nacre_buffer* buffer);

/* No further use of it; returns when nobody reads or writes the memory any more. */
int nacre_buffer_release(nacre_buffer buffer);

typedef enum nacre_memory {
  NACRE_MEMORY_HOST = 0,
  NACRE_MEMORY_PINNED = 1,  /* host memory known to CUDA */
  NACRE_MEMORY_MANAGED = 2, /* CUDA's unified memory, used as host memory */
  NACRE_MEMORY_DEVICE = 3
} nacre_memory;

typedef struct nacre_buffer_info {
  uint64_t struct_size;
  void* address;
  uint64_t size;
  uint32_t memory; /* nacre_memory */
  int32_t gpu;     /* CUDA's number of it; -1: none */
} nacre_buffer_info;

int nacre_buffer_get_info(nacre_buffer buffer, nacre_buffer_info* info);

/* ---- Reading and writing ---- */

typedef enum nacre_verification {
  NACRE_VERIFIED_NONE = 0,  /* verification is off, or nothing came from an object server (see `path`) */
  NACRE_VERIFIED_HOST = 1,  /* against its checksums, by the CPU */
  NACRE_VERIFIED_DEVICE = 2 /* by the GPU, where it lies; while a stream waits for its read, by the CPU from a
                               copy of what lies there */
} nacre_verification;

/* How one extent went. */
typedef struct nacre_result {
  uint64_t struct_size;
  int32_t error; /* 0 or an errno value; ECANCELED, ETIMEDOUT: nobody writes into the buffer any more */
  uint32_t verification; /* nacre_verification */
  uint64_t bytes; /* less than asked for: end of file. What lies behind them in the buffer is as it was,
                     or zeros where the file was cut while it was read. 0 after an error. */
  char path[40];  /* that the bytes took: "shm", "tcp", "tcp+staging", "shm+gpu", "rdma+gpu", "rdma+staging";
                     "mds": a small file that lives there */
  char message[192]; /* of an error, or its beginning: nacre_error_message() has all of the first one's */
} nacre_result;
#define NACRE_RESULT_INIT                     \
  {                                           \
    sizeof(nacre_result), 0, 0, 0, {0}, { 0 } \
  }

/* One read: a run of bytes, or rows of equal length (a strided set: columns of a row-major matrix, every n-th
 * record). Rows come in the file's order and do not overlap, neither there nor in the buffer. */
typedef struct nacre_extent {
  uint64_t struct_size;
  nacre_file file;
  uint64_t offset; /* of the first row in the file */
  nacre_buffer buffer;
  uint64_t buffer_offset; /* of the first row in the buffer. With the buffer {0}: an address of this process,
                             of memory that was not registered. GPU memory is registered then, by whole
                             allocations, and stays so until others need the room: a program that uses its
                             memory for long is better off with buffers of its own. */
  uint64_t length;        /* of each row */
  uint64_t rows;          /* 0 counts as 1 */
  uint64_t file_stride;   /* from the beginning of a row to that of the next */
  uint64_t buffer_stride; /* likewise; 0: length */
} nacre_extent;
#define NACRE_EXTENT_INIT \
  { sizeof(nacre_extent), {0}, 0, {0}, 0, 0, 0, 0, 0 }

typedef struct nacre_io_options {
  uint64_t struct_size;
  int64_t timeout; /* from the call on; 0: none. What is not there by then has ETIMEDOUT. */
} nacre_io_options;
#define NACRE_IO_OPTIONS_INIT \
  { sizeof(nacre_io_options), 0 }

/* Returns result->error. `result` may be NULL. A read sees what any write on any mount had returned for
 * before it began. */
int nacre_read(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset, uint64_t length,
               nacre_result* result);

/* As write(2): what has returned is seen by every later read on every mount; nacre_file_sync makes it
 * durable. */
int nacre_write(nacre_file file, uint64_t offset, nacre_buffer buffer, uint64_t buffer_offset,
                uint64_t length, nacre_result* result);

/* Many extents, of any files and buffers of one client, in one go: as few requests as they need. results[i]
 * belongs to extents[i]; an array's first element tells the size of all. Returns 0 if every extent succeeded,
 * else the first error among the results. An error in the arguments themselves leaves no extent done and is
 * noted in each result. `options` may be NULL. */
int nacre_readv(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                nacre_result* results);

/* The other way. An extent that failed says in `bytes` how many, from its beginning, are written all the
 * same. Extents of one call are written in any order; with O_APPEND one after the other, wherever the file
 * ends. */
int nacre_writev(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                 nacre_result* results);

/* Begin the same and return at once. The arrays may be reused; the memory of the buffers may not until the
 * future is done. */
int nacre_readv_async(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                      nacre_future* future);
int nacre_writev_async(const nacre_extent* extents, size_t count, const nacre_io_options* options,
                       nacre_future* future);

/* The same in the order of a CUDA stream (a CUstream or cudaStream_t): the bytes are read, or written, after
 * the work before it in the stream, and the work behind it waits for that, without a host callback. The
 * stream goes on after an error, too: look at the future. ENOTSUP with the reason: no GPU, one that cannot
 * wait for a value, or a stream that is being captured into a graph (whose replay would read nothing). Do not
 * enqueue a copy from or to unpinned host memory behind it before it is done, nor a kernel that the process
 * has not used before (unless CUDA_MODULE_LOADING=EAGER): CUDA waits for the stream inside that call, holding
 * what the read needs. */
int nacre_read_on_stream(void* stream, const nacre_extent* extents, size_t count,
                         const nacre_io_options* options, nacre_future* future);
int nacre_write_on_stream(void* stream, const nacre_extent* extents, size_t count,
                          const nacre_io_options* options, nacre_future* future);

/* A place in a CUDA stream where it stands still: for what is decided only when the stream gets there.
 * nacre_turn_take enqueues it and returns at once; `memory` is an address on the stream's GPU, and the errors
 * are those of nacre_read_on_stream. nacre_turn_wait returns when the stream has got there, with EAGAIN if
 * not within the time (0: do not wait; negative: wait for ever), EIO if the GPU has failed. nacre_turn_end
 * lets the stream go on, and must come, also after an error. */
typedef struct nacre_turn {
  uint64_t id;
} nacre_turn;
int nacre_turn_take(nacre_client client, void* stream, const void* memory, nacre_turn* turn);
int nacre_turn_wait(nacre_turn turn, int64_t timeout);
int nacre_turn_end(nacre_turn turn);

/* ---- Futures ---- */

/* Waits until it is done: every extent has its result, and nobody writes into the buffers any more. EAGAIN:
 * not within `timeout` (0: do not wait; negative: wait for ever), and it goes on. */
int nacre_future_wait(nacre_future future, int64_t timeout);

/* Adds 1 to an eventfd(2) when it is done, now if it is. The descriptor may be closed afterwards. */
int nacre_future_notify(nacre_future future, int event_fd);

/* Asks it to end early; the extents not done by then have ECANCELED. Does not wait: it is done when
 * nacre_future_wait says so. */
int nacre_future_cancel(nacre_future future);

/* The results of the first `count` extents. EAGAIN: it is not done. Returns what nacre_readv would have. */
int nacre_future_results(nacre_future future, nacre_result* results, size_t count);

/* Forgets it. A read under way goes on; releasing its buffer waits for it. */
int nacre_future_free(nacre_future future);

/* ---- Queues: hundreds of reads and writes under way, each of which ends by itself ----
 *
 *   nacre_queue_open(client, 256, &queue);
 *   nacre_queue_submit(queue, requests, 256, NULL, &taken);
 *   while (left > 0) {
 *     nacre_queue_reap(queue, 32, -1, done, 256, &count);
 *     ... uses done[0] to done[count - 1], submits as many new requests
 *   }
 *
 * Costs less than a future for each: what is submitted in one call, or shortly one after the other, shares
 * requests to the servers, and who waits for many is woken once. Requests are independent and done in any
 * order: one that fails, or waits for a server that is away, holds up those that share its way for five
 * seconds at most, or until the call ends of a server that has it and does not answer. Any threads may submit
 * and reap at once; each completion goes to one of them. */
typedef struct nacre_queue {
  uint64_t id;
} nacre_queue;

typedef enum nacre_request_operation {
  NACRE_REQUEST_READ = 0,
  NACRE_REQUEST_WRITE = 1
} nacre_request_operation;

typedef struct nacre_request {
  uint64_t struct_size;
  uint64_t user_data; /* the caller's own; comes back with the completion */
  uint32_t operation; /* nacre_request_operation */
  uint32_t reserved;  /* 0 */
  nacre_file file;    /* of the queue's client */
  uint64_t offset;    /* in the file */
  nacre_buffer buffer;
  uint64_t buffer_offset; /* with the buffer {0}: an address, as in nacre_extent */
  uint64_t length;
} nacre_request;
#define NACRE_REQUEST_INIT \
  { sizeof(nacre_request), 0, NACRE_REQUEST_READ, 0, {0}, 0, {0}, 0, 0 }

/* Stays as it is: 16 bytes. */
typedef struct nacre_completion {
  uint64_t user_data;
  int64_t result; /* bytes, less than asked for at the end of the file; or -errno: nothing is known of the
                     bytes then, but that nobody touches the buffer any more. A write that failed may have
                     written some. */
} nacre_completion;

/* depth: how many requests may be submitted and not yet reaped, 1 to 65536. */
int nacre_queue_open(nacre_client client, uint64_t depth, nacre_queue* queue);

/* Takes the first `*taken` of the requests, as many as there is room for, and returns at once. The array may
 * be reused; the memory of the buffers may not until their completions are reaped. A request that is wrong is
 * taken, too, and its completion says so. EAGAIN: there is room for none. `options` (may be NULL): the
 * timeout is that of each of these requests; what is not done by then has -ETIMEDOUT. */
int nacre_queue_submit(nacre_queue queue, const nacre_request* requests, size_t count,
                       const nacre_io_options* options, size_t* taken);

/* Gives at most `most` completions, those first that were done first. Waits until there are `least` of them
 * (or `most`, if that is less), or as many as are under way. EAGAIN: not within `timeout` (0: do not wait;
 * negative: wait for ever); `*reaped` of them are given all the same. EBADF: the queue was closed meanwhile.
 * If a completion has an error, nacre_error_message() has the words for the first of them, also when this
 * returns 0. */
int nacre_queue_reap(nacre_queue queue, size_t least, int64_t timeout, nacre_completion* completions,
                     size_t most, size_t* reaped);

/* An eventfd(2) that poll(2) finds readable as long as there are completions to reap, or the queue was
 * closed; reaping the last one clears it. The descriptor is the caller's, to close when he likes. */
int nacre_queue_event_fd(nacre_queue queue, int* event_fd);

/* Asks the requests with this user data (NULL: all) to end early; those that do have -ECANCELED. Does not
 * wait. */
int nacre_queue_cancel(nacre_queue queue, const uint64_t* user_data);

/* Ends the reads, waits for the writes, and returns when nobody touches the memory of any request any more.
 * What was not reaped is lost. Also done by nacre_client_close. */
int nacre_queue_close(nacre_queue queue);

#ifdef __cplusplus
}
#endif

#endif
