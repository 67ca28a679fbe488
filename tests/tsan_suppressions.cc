// Linked into every test program of a TSan build. Debian's libraries are not built for TSan, so what they
// synchronise looks unsynchronised.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  // The reference count of a Status is decremented inside libabsl; whoever brings it to zero frees the
  // message.
  return "race:absl::debian3::Status::Unref\n";
}
