#include "client/layout_text.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <cerrno>
#include <limits>
#include <vector>

#include "common/units.h"

namespace nacre {
namespace {

constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kSizeUnit = 64 << 10;
constexpr uint64_t kMaxStripeSize = (4ull << 30) - kSizeUnit;
constexpr int kMaxStripes = 2000;
constexpr uint32_t kMaxCopies = 3;

template <typename... Args>
Status Wrong(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return ErrnoError(EINVAL, absl::StrFormat(format, args...));
}

StatusOr<uint64_t> ParseEnd(const std::string& text) {
  if (text == "-1" || text == "eof" || text == "EOF") return kEnd;
  ASSIGN_OR_RETURN(uint64_t end, ParseSize(text));
  if (end == 0 || end % kSizeUnit != 0) {
    return Wrong("-E %s: the end of a component must be a multiple of 64K, or -1 for the end of the file",
                 text);
  }
  return end;
}

StatusOr<int> ParseCount(const std::string& text) {
  int count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < -1 || count == 0 || count > kMaxStripes) {
    return Wrong("-c %s: the stripe count must be 1 to %d, or -1 for every OST", text, kMaxStripes);
  }
  return count;
}

StatusOr<uint32_t> ParseStripeSize(const std::string& text) {
  ASSIGN_OR_RETURN(uint64_t size, ParseSize(text));
  if (size % kSizeUnit != 0 || size > kMaxStripeSize) {
    return Wrong("-S %s: the stripe size must be a multiple of 64K, at most %s", text,
                 ExactSize(kMaxStripeSize));
  }
  return static_cast<uint32_t>(size);
}

StatusOr<uint32_t> ParseCopies(const std::string& text) {
  uint32_t copies = 0;
  if (!absl::SimpleAtoi(text, &copies) || copies > kMaxCopies) {
    return Wrong("-N %s: the number of copies must be 1 to %d, or 0 for as few as there are", text,
                 kMaxCopies);
  }
  return copies;
}

// Ends rise, fit the stripes, and the last one is the end of the file.
Status CheckEnds(const proto::LayoutTemplate& layout) {
  uint64_t start = 0;
  for (const auto& component : layout.components()) {
    const std::string end = ExactSize(component.end());
    if (start == kEnd) return Wrong("a component behind -E -1: nothing can follow the end of the file");
    if (component.end() <= start)
      return Wrong("-E %s: not behind the end of the component before, %s", end, ExactSize(start));
    if (component.end() != kEnd && component.stripe_size() != 0 &&
        (component.end() - start) % component.stripe_size() != 0) {
      return Wrong("-E %s: the component must be a multiple of its stripe size, %s, long", end,
                   ExactSize(component.stripe_size()));
    }
    start = component.end();
  }
  if (start != kEnd)
    return Wrong("-E %s: the last component must end at -1, the end of the file", ExactSize(start));
  return OkStatus();
}

class Parser {
 public:
  Status Option(const std::string& option, const std::string& value) {
    if (option == "-E") return Begin(value);
    if (layout_.components().empty()) whole_ = true;
    if (option == "-c") {
      ASSIGN_OR_RETURN(int count, ParseCount(value));
      current().set_stripe_count(count);
      return OkStatus();
    }
    if (option == "-S") {
      ASSIGN_OR_RETURN(uint32_t size, ParseStripeSize(value));
      current().set_stripe_size(size);
      return OkStatus();
    }
    if (option == "-N") {
      ASSIGN_OR_RETURN(uint32_t copies, ParseCopies(value));
      current().set_copies(copies);
      return OkStatus();
    }
    return Wrong("'%s' is not an option of a layout: -E END, -c COUNT, -S SIZE and -N COPIES are", option);
  }

  StatusOr<proto::LayoutTemplate> Finish() && {
    RETURN_IF_ERROR(CheckEnds(layout_));
    return std::move(layout_);
  }

 private:
  Status Begin(const std::string& value) {
    if (whole_) return Wrong("-E %s: must come before the -c, -S and -N of its component", value);
    ASSIGN_OR_RETURN(uint64_t end, ParseEnd(value));
    proto::TemplateComponent component;
    component.set_stripe_count(1);
    if (!layout_.components().empty()) component = *layout_.components().rbegin();
    component.set_end(end);
    *layout_.add_components() = component;
    return OkStatus();
  }

  proto::TemplateComponent& current() {
    if (layout_.components().empty()) {
      layout_.add_components()->set_end(kEnd);
      layout_.mutable_components(0)->set_stripe_count(1);
    }
    return *layout_.mutable_components(layout_.components_size() - 1);
  }

  proto::LayoutTemplate layout_;
  bool whole_ = false;  // options without -E: one component for everything
};

std::string EndText(uint64_t end) { return end == kEnd ? "-1" : ExactSize(end); }

}  // namespace

StatusOr<proto::LayoutTemplate> ParseLayout(std::string_view text) {
  std::vector<std::string> words =
      absl::StrSplit(AbslView(text), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  if (words.empty()) return proto::LayoutTemplate();
  Parser parser;
  for (size_t i = 0; i < words.size(); i += 2) {
    if (i + 1 == words.size()) return Wrong("'%s' without a value, in the layout '%s'", words[i], text);
    RETURN_IF_ERROR(parser.Option(words[i], words[i + 1]));
  }
  return std::move(parser).Finish();
}

std::string FormatLayout(const proto::LayoutTemplate& layout) {
  std::vector<std::string> parts;
  uint32_t copies = 0;  // of the component before, which hold until others are named
  for (const auto& component : layout.components()) {
    std::string part =
        layout.components_size() > 1 ? absl::StrFormat("-E %s ", EndText(component.end())) : "";
    absl::StrAppendFormat(&part, "-c %d -S %s", component.stripe_count(), ExactSize(component.stripe_size()));
    if (component.copies() != copies) absl::StrAppendFormat(&part, " -N %d", component.copies());
    copies = component.copies();
    parts.push_back(std::move(part));
  }
  return absl::StrJoin(parts, " ");
}

std::string FormatLayout(const proto::Layout& layout) {
  proto::LayoutTemplate as_template;
  for (const auto& component : layout.components()) {
    auto* out = as_template.add_components();
    out->set_end(component.end());
    out->set_stripe_size(component.stripe_size());
    out->set_stripe_count(component.ost_group_size());
  }
  return FormatLayout(as_template);
}

std::string DescribeFile(const Fid& fid, const proto::Layout& layout, bool inline_data) {
  std::vector<std::string> components;
  uint64_t start = 0;
  for (const auto& component : layout.components()) {
    std::string end = component.end() == kEnd ? "null" : absl::StrCat(component.end());
    components.push_back(absl::StrFormat(R"({"start": %d, "end": %s, "stripe_size": %d, "osts": [%s]})",
                                         start, end, component.stripe_size(),
                                         absl::StrJoin(component.ost_group(), ", ")));
    start = component.end();
  }
  return absl::StrFormat(
      R"({"fid": "%s", "generation": %d, "objects": "%x", "inline": %s, "components": [%s]})", fid.ToString(),
      layout.generation(), layout.object_sequence(), inline_data ? "true" : "false",
      absl::StrJoin(components, ", "));
}

std::string DescribeDirectory(const Fid& fid, const proto::LayoutTemplate& layout, bool inherited) {
  return absl::StrFormat(R"({"fid": "%s", "layout": "%s", "inherited": %s})", fid.ToString(),
                         FormatLayout(layout), inherited ? "true" : "false");
}

}  // namespace nacre
