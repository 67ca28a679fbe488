// A library for LD_PRELOAD: the program sees a time of day that is NACRE_CLOCK_SHIFT seconds (which may be
// negative) away from the machine's. Its waits until a time of day end when they should, those that absl
// makes by a futex too, which is why libfaketime will not do. The steady clock and the kernel's own time
// stamps are as they were.

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <ctime>

namespace {

using Syscall = long (*)(long, ...);

Syscall KernelCall() {
  static const auto real = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
  return real;
}

time_t Shift() {
  static const time_t shift = [] {
    const char* text = std::getenv("NACRE_CLOCK_SHIFT");
    return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  }();
  return shift;
}

// The same point in time by the machine's clock. A steady clock counts from the boot: what is less than ten
// years is no time of day.
timespec Unshifted(timespec time) {
  constexpr time_t kTenYears = 10L * 365 * 86400;
  if (time.tv_sec > kTenYears) time.tv_sec -= Shift();
  return time;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  const auto failed = static_cast<int>(KernelCall()(SYS_clock_gettime, clock, time));
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += Shift();
  return failed;
}

int gettimeofday(timeval* time, void* /*zone*/) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* seconds) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != nullptr) *seconds = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  const timespec mine = Unshifted(*until);
  const bool steady = mine.tv_sec == until->tv_sec && Shift() != 0;
  return pthread_cond_clockwait(condition, mutex, steady ? CLOCK_MONOTONIC : CLOCK_REALTIME, &mine);
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long argument[6];
  for (long& one : argument) one = va_arg(list, long);
  va_end(list);
  timespec until{};
  const bool waits = number == SYS_futex && (argument[1] & FUTEX_CLOCK_REALTIME) != 0 && argument[3] != 0;
  if (waits) {
    until = Unshifted(*reinterpret_cast<const timespec*>(argument[3]));
    argument[3] = reinterpret_cast<long>(&until);
  }
  return KernelCall()(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

}  // extern "C"
