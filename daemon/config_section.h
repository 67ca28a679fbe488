// One section of a configuration with its declared keys: type, allowed values, default, one line of help. The
// same declaration reads the file, makes the command line's flags, and checks the manual.
//
// A section writes into the fields that it was given, which must outlive it. Not thread-safe. Errors of
// Assign name the value and what is allowed; the caller adds where it was found.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace nacre {

using ConfigValue = std::variant<bool, int64_t, std::string, std::vector<std::string>>;

struct ConfigKey {
  std::string name;
  std::string help;
  std::string allowed;   // "a size from 1M to 1T, such as 64MiB"
  std::string fallback;  // the default, as one would write it
  bool list = false;
  bool flag = false;
  std::function<Status(const ConfigValue&)> assign;
};

class ConfigSection {
 public:
  explicit ConfigSection(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const std::vector<ConfigKey>& keys() const { return keys_; }
  const ConfigKey* Find(const std::string& key) const;

  // The fields' values at the time of the call are the defaults.
  void Text(const std::string& key, std::string* field, const std::string& help);
  void List(const std::string& key, std::vector<std::string>* field, const std::string& help);
  void Flag(const std::string& key, bool* field, const std::string& help);
  void Choice(const std::string& key, std::string* field, std::vector<std::string> choices,
              const std::string& help);
  void Size(const std::string& key, uint64_t* field, uint64_t min, uint64_t max, const std::string& help);
  void Time(const std::string& key, Duration* field, Duration min, Duration max, const std::string& help);
  template <typename T>
  void Number(const std::string& key, T* field, int64_t min, int64_t max, const std::string& help) {
    AddNumber(key, static_cast<int64_t>(*field), min, max, help,
              [field](int64_t value) { *field = static_cast<T>(value); });
  }

  // [[section.key]]: `add` makes one more and returns its keys.
  void Tables(const std::string& key, std::function<ConfigSection()> add);
  const std::function<ConfigSection()>* FindTables(const std::string& key) const;

  // A key that has been taken away. A file may still have it, with any value: that is said, and changes
  // nothing.
  void Removed(const std::string& key, const std::string& why);
  // Null: it never was one.
  const std::string* FindRemoved(const std::string& key) const;

  // "unknown key 'chache' in [client]; did you mean 'cache'? Known: …"
  Status Unknown(const std::string& key) const;

 private:
  void AddNumber(const std::string& key, int64_t fallback, int64_t min, int64_t max, const std::string& help,
                 std::function<void(int64_t)> set);

  std::string name_;
  std::vector<ConfigKey> keys_;
  std::vector<std::pair<std::string, std::function<ConfigSection()>>> tables_;
  std::vector<std::pair<std::string, std::string>> removed_;
};

// The text behind the name of something unknown: ": did you mean 'memory'?; known are memory, threads", the
// first part only if one of the known names is close enough to be meant.
std::string KnownNames(const std::string& name, const std::vector<std::string>& known);

}  // namespace nacre
