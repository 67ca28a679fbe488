#include "tests/fuzz/message_filler.h"

#include <google/protobuf/descriptor.h>
#include <sys/stat.h>

#include <limits>

#include "proto/types.pb.h"
#include "rpc/convert.h"

namespace nacre::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 6;
constexpr int kMaxRepeats = 4;

void Fill(FuzzedDataProvider& input, Message* message, int depth);

void FillFid(FuzzedDataProvider& input, proto::Fid* fid) {
  const auto pick = input.ConsumeIntegralInRange<uint8_t>(0, 9);
  if (pick == 0) return;
  if (pick == 9) return *fid = ToProto(Fid{FillNumber(input), input.ConsumeIntegral<uint32_t>(), 0}), void();
  *fid = ToProto(pick <= 2 ? Fid{0, pick, 0} : Fid{1, pick - 2u, 0});
}

// Most are layouts that hold together.
void FillLayout(FuzzedDataProvider& input, proto::Layout* layout, int depth) {
  const auto stripes = input.ConsumeIntegralInRange<uint8_t>(0, 5);
  if (stripes == 5) return Fill(input, layout, depth);
  layout->set_generation(input.ConsumeIntegralInRange<uint32_t>(0, 3));
  layout->set_object_sequence(input.ConsumeIntegralInRange<uint64_t>(0, 3));
  if (stripes == 0) return;
  proto::Component* component = layout->add_components();
  component->set_end(std::numeric_limits<uint64_t>::max());
  component->set_stripe_size(64 << 10);
  for (uint32_t i = 0; i < stripes; ++i) component->add_ost_group(i % 3);
}

void FillNested(FuzzedDataProvider& input, Message* message, int depth) {
  if (auto* fid = dynamic_cast<proto::Fid*>(message)) return FillFid(input, fid);
  if (auto* layout = dynamic_cast<proto::Layout*>(message)) return FillLayout(input, layout, depth);
  Fill(input, message, depth);
}

void SetField(FuzzedDataProvider& input, Message* message, const FieldDescriptor* field, int depth) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FillNested(input, reflection->MutableMessage(message, field), depth + 1);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, FillBytes(input));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(FillNumber(input)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, FillNumber(input));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(message, field, static_cast<int32_t>(FillNumber(input)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(message, field, static_cast<int64_t>(FillNumber(input)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, input.ConsumeBool());
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(message, field, input.ConsumeIntegralInRange<int>(0, 4));
    default:
      return;
  }
}

void AddField(FuzzedDataProvider& input, Message* message, const FieldDescriptor* field, int depth) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FillNested(input, reflection->AddMessage(message, field), depth + 1);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->AddString(message, field, FillBytes(input));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->AddUInt32(message, field, static_cast<uint32_t>(FillNumber(input)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->AddUInt64(message, field, FillNumber(input));
    default:
      return;
  }
}

void Fill(FuzzedDataProvider& input, Message* message, int depth) {
  if (depth > kMaxDepth) return;
  const auto* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->real_containing_oneof() != nullptr || !input.ConsumeBool()) continue;
    const int repeats = field->is_repeated() ? input.ConsumeIntegralInRange<int>(0, kMaxRepeats) : 0;
    if (!field->is_repeated()) SetField(input, message, field, depth);
    for (int n = 0; n < repeats; ++n) AddField(input, message, field, depth);
  }
  for (int i = 0; i < descriptor->real_oneof_decl_count(); ++i) {
    const auto* oneof = descriptor->oneof_decl(i);
    const int pick = input.ConsumeIntegralInRange<int>(0, oneof->field_count());
    if (pick > 0) SetField(input, message, oneof->field(pick - 1), depth);
  }
}

}  // namespace

uint64_t FillNumber(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange<uint8_t>(0, 7)) {
    case 0:
      return 0;
    case 1:
    case 2:
      return input.ConsumeIntegralInRange<uint64_t>(0, 8);
    case 3:
      return S_IFREG | 0644;
    case 4:
      return S_IFDIR | 0755;
    case 5:
      return input.ConsumeIntegralInRange<uint64_t>(0, 1 << 20);
    case 6:
      return std::numeric_limits<uint64_t>::max() - input.ConsumeIntegralInRange<uint64_t>(0, 1 << 17);
    default:
      return input.ConsumeIntegral<uint64_t>();
  }
}

std::string FillBytes(FuzzedDataProvider& input) {
  static const char* const kNames[] = {"a", "b", "user.x", "trusted.y", ".", "..", "", "a/b", "nacre.layout"};
  if (input.ConsumeBool()) return input.ConsumeRandomLengthString(300);
  return input.PickValueInArray(kNames);
}

void FillMessage(FuzzedDataProvider& input, Message* message) { FillNested(input, message, 0); }

}  // namespace nacre::fuzz
