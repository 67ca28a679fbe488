// Hostile configuration files: read or refused with a message, whatever they hold.
#include <cstdlib>

#include "daemon/config_file.h"

namespace nacre {
namespace {

struct Fields {
  std::string text, choice = "a";
  std::vector<std::string> list;
  bool flag = false;
  uint64_t size = 0;
  int number = 0;
  Duration time{0};
  std::vector<std::string> tables;
};

ConfigSection Describe(Fields* fields) {
  ConfigSection section("s");
  section.Text("text", &fields->text, "help");
  section.Choice("choice", &fields->choice, {"a", "b"}, "help");
  section.List("list", &fields->list, "help");
  section.Flag("flag", &fields->flag, "help");
  section.Size("size", &fields->size, 1, 1 << 30, "help");
  section.Number("number", &fields->number, -5, 5, "help");
  section.Time("time", &fields->time, Duration(0), std::chrono::hours(1), "help");
  section.Tables("table", [fields] {
    fields->tables.emplace_back();
    ConfigSection each("s.table");
    each.Text("text", &fields->tables.back(), "help");
    return each;
  });
  return section;
}

void Check(std::string_view text) {
  Fields fields;
  std::vector<ConfigSection> sections = {Describe(&fields)};
  Status status = ReadConfigText(text, "fuzz", sections);
  if (!status.ok() && status.message().empty()) std::abort();
  if (fields.size > 1 << 30 || fields.number < -5 || fields.number > 5 || fields.time > std::chrono::hours(1))
    std::abort();
}

}  // namespace
}  // namespace nacre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nacre::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
