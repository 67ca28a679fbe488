// Gives the parsers of messages to verbs endpoints any bytes: whatever they take must come back from its
// encoding as it was. The input's first byte chooses the parser.
#include <cstdlib>
#include <cstring>
#include <string>

#include "transport/verbs/message.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void TryEndpoint(std::string_view bytes) {
  auto endpoint = nacre::verbs::ParseEndpoint(bytes);
  if (endpoint.ok()) Require(nacre::verbs::EncodeEndpoint(*endpoint) == bytes);
}

void TryAttach(std::string_view bytes) {
  auto message = nacre::verbs::ParseAttach(bytes);
  if (message.ok()) Require(nacre::verbs::EncodeAttach(*message) == bytes);
}

void TryPort(std::string_view text) {
  auto port = nacre::verbs::ParsePort(text);
  if (!port.ok()) return;
  auto again = nacre::verbs::ParsePort(nacre::verbs::EncodePort(*port));
  Require(again.ok() && *again == *port);
}

void TryFragment(std::string_view bytes) {
  auto header = nacre::verbs::ParseFragment(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (!header.ok()) return;
  std::byte encoded[nacre::verbs::kFragmentHeaderSize];
  nacre::verbs::EncodeFragmentHeader(*header, encoded);
  Require(std::memcmp(encoded, bytes.data(), sizeof encoded) == 0);
}

void TryCall(std::string_view bytes) {
  auto call = nacre::verbs::ParseCall(bytes);
  if (!call.ok()) return;
  auto encoded = nacre::verbs::EncodeCall(call->kind, call->memory, call->body, call->with_reply);
  Require(encoded.ok() && *encoded == bytes);
}

void TryDataReply(std::string_view bytes) {
  auto reply = nacre::verbs::ParseDataReply(bytes, nacre::verbs::kMaxWithReply);
  if (!reply.ok()) return;
  std::string again = nacre::verbs::EncodeDataReply(reply->ranges, reply->body);
  Require(again.append(reply->data) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      TryEndpoint(bytes);
      break;
    case 1:
      TryFragment(bytes);
      break;
    case 2:
      TryAttach(bytes);
      break;
    case 3:
      TryPort(bytes);
      break;
    case 4:
      TryDataReply(bytes);
      break;
    default:
      TryCall(bytes);
      break;
  }
  return 0;
}
