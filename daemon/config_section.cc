#include "daemon/config_section.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "common/units.h"

namespace nacre {
namespace {

std::string Show(const ConfigValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return absl::StrCat("\"", *text, "\"");
  return absl::StrCat("[", absl::StrJoin(std::get<std::vector<std::string>>(value), ", "), "]");
}

Status NotAllowed(const ConfigValue& value, const std::string& allowed) {
  return ErrnoError(EINVAL, absl::StrFormat("%s is not allowed; must be %s", Show(value), allowed));
}

// Levenshtein's distance.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

// "" if none is close enough to be meant.
std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    size_t distance = Distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace

std::string KnownNames(const std::string& name, const std::vector<std::string>& known) {
  std::string nearest = NearestName(name, known);
  return absl::StrCat(nearest.empty() ? "" : absl::StrCat(": did you mean '", nearest, "'?"), "; known are ",
                      absl::StrJoin(known, ", "));
}

const ConfigKey* ConfigSection::Find(const std::string& key) const {
  auto found = std::find_if(keys_.begin(), keys_.end(), [&](const ConfigKey& k) { return k.name == key; });
  return found == keys_.end() ? nullptr : &*found;
}

const std::function<ConfigSection()>* ConfigSection::FindTables(const std::string& key) const {
  for (const auto& [name, add] : tables_) {
    if (name == key) return &add;
  }
  return nullptr;
}

void ConfigSection::Text(const std::string& key, std::string* field, const std::string& help) {
  const std::string allowed = "a text";
  keys_.push_back({key, help, allowed, *field, false, false, [=](const ConfigValue& value) -> Status {
                     const auto* text = std::get_if<std::string>(&value);
                     if (text == nullptr) return NotAllowed(value, allowed + " in quotes");
                     *field = *text;
                     return OkStatus();
                   }});
}

void ConfigSection::List(const std::string& key, std::vector<std::string>* field, const std::string& help) {
  const std::string allowed = "a list of texts";
  keys_.push_back(
      {key, help, allowed, absl::StrJoin(*field, ","), true, false, [=](const ConfigValue& value) -> Status {
         const auto* list = std::get_if<std::vector<std::string>>(&value);
         if (list == nullptr) return NotAllowed(value, allowed + ", such as [\"a\", \"b\"]");
         *field = *list;
         return OkStatus();
       }});
}

void ConfigSection::Flag(const std::string& key, bool* field, const std::string& help) {
  const std::string allowed = "true or false";
  keys_.push_back(
      {key, help, allowed, *field ? "true" : "false", false, true, [=](const ConfigValue& value) -> Status {
         const auto* text = std::get_if<std::string>(&value);
         const auto* flag = std::get_if<bool>(&value);
         if (flag != nullptr) *field = *flag;
         if (text != nullptr && !absl::SimpleAtob(*text, field)) return NotAllowed(value, allowed);
         return flag != nullptr || text != nullptr ? OkStatus() : NotAllowed(value, allowed);
       }});
}

void ConfigSection::Choice(const std::string& key, std::string* field, std::vector<std::string> choices,
                           const std::string& help) {
  const std::string allowed = absl::StrCat("one of ", absl::StrJoin(choices, ", "));
  keys_.push_back({key, help, allowed, *field, false, false, [=](const ConfigValue& value) -> Status {
                     const auto* text = std::get_if<std::string>(&value);
                     if (text == nullptr ||
                         std::find(choices.begin(), choices.end(), *text) == choices.end()) {
                       return NotAllowed(value, allowed);
                     }
                     *field = *text;
                     return OkStatus();
                   }});
}

void ConfigSection::Size(const std::string& key, uint64_t* field, uint64_t min, uint64_t max,
                         const std::string& help) {
  const std::string allowed =
      absl::StrFormat("a size from %s to %s, such as \"64MiB\"", ExactSize(min), ExactSize(max));
  keys_.push_back(
      {key, help, allowed, ExactSize(*field), false, false, [=](const ConfigValue& value) -> Status {
         uint64_t size = 0;
         if (const auto* number = std::get_if<int64_t>(&value); number != nullptr && *number >= 0) {
           size = static_cast<uint64_t>(*number);
         } else if (const auto* text = std::get_if<std::string>(&value)) {
           ASSIGN_OR_RETURN(size, ParseSize(*text));
         } else {
           return NotAllowed(value, allowed);
         }
         if (size < min || size > max) return NotAllowed(value, allowed);
         *field = size;
         return OkStatus();
       }});
}

void ConfigSection::Time(const std::string& key, Duration* field, Duration min, Duration max,
                         const std::string& help) {
  const std::string allowed = absl::StrFormat("a duration from %s to %s, such as \"5s\" or \"250ms\"",
                                              ExactDuration(min), ExactDuration(max));
  keys_.push_back(
      {key, help, allowed, ExactDuration(*field), false, false, [=](const ConfigValue& value) -> Status {
         const auto* text = std::get_if<std::string>(&value);
         if (text == nullptr) return NotAllowed(value, allowed);
         ASSIGN_OR_RETURN(Duration duration, ParseDuration(*text));
         if (duration < min || duration > max) return NotAllowed(value, allowed);
         *field = duration;
         return OkStatus();
       }});
}

void ConfigSection::AddNumber(const std::string& key, int64_t fallback, int64_t min, int64_t max,
                              const std::string& help, std::function<void(int64_t)> set) {
  const std::string allowed = absl::StrFormat("a number from %d to %d", min, max);
  keys_.push_back(
      {key, help, allowed, absl::StrCat(fallback), false, false, [=](const ConfigValue& value) -> Status {
         int64_t number = 0;
         if (const auto* given = std::get_if<int64_t>(&value)) {
           number = *given;
         } else if (const auto* text = std::get_if<std::string>(&value);
                    text == nullptr || !absl::SimpleAtoi(*text, &number)) {
           return NotAllowed(value, allowed);
         }
         if (number < min || number > max) return NotAllowed(value, allowed);
         set(number);
         return OkStatus();
       }});
}

void ConfigSection::Tables(const std::string& key, std::function<ConfigSection()> add) {
  tables_.emplace_back(key, std::move(add));
}

void ConfigSection::Removed(const std::string& key, const std::string& why) {
  removed_.emplace_back(key, why);
}

const std::string* ConfigSection::FindRemoved(const std::string& key) const {
  for (const auto& [name, why] : removed_) {
    if (name == key) return &why;
  }
  return nullptr;
}

Status ConfigSection::Unknown(const std::string& key) const {
  std::vector<std::string> known;
  for (const ConfigKey& k : keys_) known.push_back(k.name);
  for (const auto& [name, add] : tables_) known.push_back(name);
  return ErrnoError(EINVAL,
                    absl::StrFormat("unknown key '%s' in [%s]%s", key, name_, KnownNames(key, known)));
}

}  // namespace nacre
