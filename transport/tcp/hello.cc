#include "transport/tcp/hello.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cerrno>

namespace nacre {
namespace {

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }

bool IsPath(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

Status CheckOffer(const PathOffer& offer) {
  const bool printable = std::all_of(offer.where.begin(), offer.where.end(), IsPrintable);
  if (IsPath(offer.path) && printable && offer.path.size() + 1 + offer.where.size() <= kMaxOfferSize) {
    return OkStatus();
  }
  return ErrnoError(EPROTO, absl::StrFormat("a greeting with a malformed offer \"%s %s\"",
                                            absl::CHexEscape(offer.path), absl::CHexEscape(offer.where)));
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  std::string text = hello.identity.substr(0, kMaxIdentitySize);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !IsPrintable(c); }, '?');
  size_t offers = 0;
  for (const PathOffer& offer : hello.offers) {
    if (!CheckOffer(offer).ok() || ++offers > kMaxOffers) continue;
    absl::StrAppendFormat(&text, "\n%s %s", offer.path, offer.where);
  }
  return text;
}

StatusOr<Hello> ParseHello(std::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(AbslView(text), '\n');
  Hello hello;
  hello.identity = lines.front();
  if (hello.identity.size() > kMaxIdentitySize) {
    return ErrnoError(EPROTO, absl::StrFormat("a greeting by a name of %d bytes (at most %d are allowed)",
                                              hello.identity.size(), kMaxIdentitySize));
  }
  if (lines.size() - 1 > kMaxOffers) {
    return ErrnoError(EPROTO, absl::StrFormat("a greeting with %d offers (at most %d are allowed)",
                                              lines.size() - 1, kMaxOffers));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t space = std::min(lines[i].find(' '), lines[i].size());
    PathOffer offer{lines[i].substr(0, space)};
    if (space < lines[i].size()) offer.where = lines[i].substr(space + 1);
    RETURN_IF_ERROR(CheckOffer(offer));
    hello.offers.push_back(std::move(offer));
  }
  return hello;
}

}  // namespace nacre
