// Messages made of a fuzzer's input, field by field: they get past the first check far more often than raw
// bytes do. Numbers, names and FIDs come from small sets that matter, and now and then from anywhere. Input
// that has run out gives empty messages. Not thread-safe.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/message.h>

#include <string>

namespace nacre::fuzz {

uint64_t FillNumber(FuzzedDataProvider& input);
std::string FillBytes(FuzzedDataProvider& input);
void FillMessage(FuzzedDataProvider& input, google::protobuf::Message* message);

}  // namespace nacre::fuzz
