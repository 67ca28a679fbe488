// Requests made of random fields: each is answered or waits for a lock, nothing breaks, and the checker finds
// a sound tree afterwards.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "server/metadata/check.h"
#include "tests/common/await.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class Hostile {
 public:
  explicit Hostile(uint64_t seed) : random(seed) {}

  void Run(int requests) {
    const auto* op = proto::MetadataRequest::descriptor()->FindOneofByName("op");
    for (int i = 0; i < requests; ++i) {
      proto::MetadataRequest request;
      const FieldDescriptor* field =
          op->field(static_cast<int>(random.Below(static_cast<uint64_t>(op->field_count()))));
      if (field->name() == "disconnect" || field->name() == "connect") continue;
      Fill(request.GetReflection()->MutableMessage(&request, field), 0);
      auto reply = std::make_shared<std::optional<proto::MetadataReply>>();
      client.As(random.OneIn(3) ? 1000 : 0, 0);
      client.Start(request, reply);
      harness.RunUntil([&] { return reply->has_value(); }, std::chrono::milliseconds(1));
      if (reply->has_value()) Learn(**reply);
      if (reply->has_value()) client.unanswered.erase(client.sequence);
    }
    harness.RunFor(std::chrono::seconds(10));
    harness.Crash();
    auto report = Await(CheckMdt(harness.store, false));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->clean()) << report->problems[0];
  }

 private:
  void Learn(const proto::MetadataReply& reply) {
    if (reply.has_entry()) fids.push_back(FidOf(reply));
    if (fids.size() > 30) fids.erase(fids.begin() + 1);
  }

  uint64_t Number() {
    switch (random.Below(6)) {
      case 0:
        return 0;
      case 1:
        return random.Below(8);
      case 2:
        return S_IFREG | random.Below(01000);
      case 3:
        return S_IFDIR | 0777;
      case 4:
        return random.Below(100'000);
      default:
        return random.Next();
    }
  }

  std::string Bytes() {
    static const char* const kNames[] = {"a",  "b", "c", "user.x", "trusted.y",
                                         "..", ".", "",  "a/b",    "nacre.layout"};
    if (random.OneIn(10)) return std::string(random.Below(300), 'n');
    return kNames[random.Below(std::size(kNames))];
  }

  void FillField(Message* message, const FieldDescriptor* field, int depth) {
    const Reflection* reflection = message->GetReflection();
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (field->message_type() == proto::Fid::descriptor() && !repeated && !random.OneIn(8)) {
          Message* fid = reflection->MutableMessage(message, field);
          *static_cast<proto::Fid*>(fid) = ToProto(fids[random.Below(fids.size())]);
          return;
        }
        return Fill(
            repeated ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field),
            depth + 1);
      case FieldDescriptor::CPPTYPE_STRING:
        return repeated ? reflection->AddString(message, field, Bytes())
                        : reflection->SetString(message, field, Bytes());
      case FieldDescriptor::CPPTYPE_UINT32:
        if (!repeated) reflection->SetUInt32(message, field, static_cast<uint32_t>(Number()));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (!repeated) reflection->SetUInt64(message, field, Number());
        return;
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection->SetInt32(message, field, static_cast<int32_t>(Number()));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection->SetInt64(message, field, static_cast<int64_t>(Number()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->SetBool(message, field, random.OneIn(2));
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection->SetEnumValue(message, field, static_cast<int>(random.Below(4)));
      default:
        return;
    }
  }

  void Fill(Message* message, int depth) {
    if (depth > 3) return;
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      if (!random.OneIn(5)) FillField(message, message->GetDescriptor()->field(i), depth);
    }
  }

  SeededRandom random;
  Harness harness;
  TestClient client{harness};
  std::vector<Fid> fids = {kRootFid};
};

TEST(Hostile, RandomRequestsBreakNothing) {
  for (uint64_t seed = 1; seed <= 10 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Hostile(seed).Run(1000);
  }
}

}  // namespace
}  // namespace nacre::mds
