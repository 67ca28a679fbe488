// How the programs' allocator is set up: jemalloc, which reads this name (docs/dependencies.md says why it is
// used).

extern "C" {
// Memory that was freed goes back to the system after some seconds also in a program that does nothing any
// more: a thread of the allocator's own sees to it, which sleeps while there is none.
extern const char* malloc_conf;
const char* malloc_conf = "background_thread:true";
}
