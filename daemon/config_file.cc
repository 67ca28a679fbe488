#include "daemon/config_file.h"

#define TOML_EXCEPTIONS 0
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "common/log.h"
#include "daemon/toml_guard.h"

namespace nacre {
namespace {

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  void ReadFile(const toml::table& root, const std::vector<ConfigSection>& sections) {
    for (const auto& [name, node] : root) {
      const ConfigSection* section = FindSection(UnguardToml(name.str()), sections);
      if (section == nullptr) {
        UnknownSection(UnguardToml(name.str()), node, sections);
      } else if (!node.is_table()) {
        Wrong(node, absl::StrFormat("%s must be a section: [%s]", section->name(), section->name()));
      } else {
        ReadSection(*node.as_table(), *section);
      }
    }
  }

  Status Result() const {
    if (errors_.empty()) return OkStatus();
    std::vector<std::string> messages;
    for (const auto& [line, message] : errors_) messages.push_back(message);
    return ErrnoError(EINVAL, absl::StrJoin(messages, "\n"));
  }

 private:
  static const ConfigSection* FindSection(const std::string& name,
                                          const std::vector<ConfigSection>& sections) {
    auto found = std::find_if(sections.begin(), sections.end(),
                              [&](const ConfigSection& s) { return s.name() == name; });
    return found == sections.end() ? nullptr : &*found;
  }

  void UnknownSection(const std::string& name, const toml::node& node,
                      const std::vector<ConfigSection>& sections) {
    std::vector<std::string> known;
    for (const ConfigSection& section : sections) known.push_back(section.name());
    Wrong(node, absl::StrFormat("unknown %s '%s'%s", node.is_table() ? "section" : "key", name,
                                KnownNames(name, known)));
  }

  void ReadSection(const toml::table& table, const ConfigSection& section) {
    for (const auto& [name, node] : table) {
      const std::string key = UnguardToml(name.str());
      if (const auto* add = section.FindTables(key)) {
        ReadTables(node, section.name() + "." + key, *add);
      } else if (const ConfigKey* known = section.Find(key)) {
        ReadKey(node, section, *known);
      } else if (const std::string* why = section.FindRemoved(key)) {
        LogWarning("%s:%d: [%s] %s is not used any more and can be deleted: %s", file_,
                   node.source().begin.line, section.name(), key, *why);
      } else {
        Wrong(node, std::string(section.Unknown(key).message()));
      }
    }
  }

  void ReadTables(const toml::node& node, const std::string& name,
                  const std::function<ConfigSection()>& add) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
      return Wrong(node, absl::StrFormat("each is a section of its own: [[%s]]", name));
    }
    for (const toml::node& element : *array) ReadSection(*element.as_table(), add());
  }

  void ReadKey(const toml::node& node, const ConfigSection& section, const ConfigKey& key) {
    ConfigValue value;
    if (!ToValue(node, &value)) {
      return Wrong(node, absl::StrFormat("[%s] %s: must be %s", section.name(), key.name, key.allowed));
    }
    Status status = key.assign(value);
    if (!status.ok()) {
      Wrong(node, absl::StrFormat("[%s] %s: %s", section.name(), key.name, std::string(status.message())));
    }
  }

  static bool ToValue(const toml::node& node, ConfigValue* value) {
    if (const auto* flag = node.as_boolean()) {
      *value = flag->get();
    } else if (const auto* number = node.as_integer()) {
      *value = number->get();
    } else if (const auto* text = node.as_string()) {
      *value = UnguardToml(text->get());
    } else if (const auto* array = node.as_array()) {
      std::vector<std::string> list;
      for (const toml::node& element : *array) {
        if (!element.is_string()) return false;
        list.push_back(UnguardToml(element.as_string()->get()));
      }
      *value = std::move(list);
    } else {
      return false;
    }
    return true;
  }

  void Wrong(const toml::node& node, const std::string& message) {
    const uint32_t line = node.source().begin.line;
    errors_.emplace(line, absl::StrFormat("%s:%d: %s", file_, line, message));
  }

  const std::string file_;
  std::multimap<uint32_t, std::string> errors_;  // by line
};

}  // namespace

Status ReadConfigText(std::string_view text, const std::string& name,
                      const std::vector<ConfigSection>& sections) {
  ASSIGN_OR_RETURN(std::string guarded, GuardToml(text, name));
  toml::parse_result parsed = toml::parse(std::string_view(guarded), name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return ErrnoError(EINVAL, absl::StrFormat("%s:%d: not TOML: %s", name, error.source().begin.line,
                                              std::string(error.description())));
  }
  Reader reader(name);
  reader.ReadFile(parsed.table(), sections);
  return reader.Result();
}

Status ReadConfigFile(const std::string& path, const std::vector<ConfigSection>& sections) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    const int error = errno != 0 ? errno : EIO;
    return ErrnoError(error, absl::StrFormat("cannot read the configuration %s: %s", path, strerror(error)));
  }
  return ReadConfigText(text.str(), path, sections);
}

}  // namespace nacre
