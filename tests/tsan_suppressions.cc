// Linked into every test program of a TSan build. Debian's libraries are not built for TSan, so what they
// synchronise looks unsynchronised.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return
      // The reference count of a Status is decremented inside libabsl; whoever brings it to zero frees the
      // message.
      "race:absl/status/status.h\n"
      "race:Status::UnrefNonInlined\n"
      // Counts down with release and a fence, and TSan does not know fences.
      "race:boost::asio::execution::detail::shared_target_executor\n";
}
