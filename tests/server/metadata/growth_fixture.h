// A file with objects, and what administrators ask for to move it and its OSTs.
#pragma once

#include "server/metadata/keys.h"
#include "server/metadata/records.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {

class GrowthTest : public testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;

  // Of other bytes in each block. `holes`: every other 64 KiB is one.
  static std::string Pattern(uint64_t size, bool holes = false) {
    std::string data(size, '\0');
    for (uint64_t i = 0; i < size; ++i)
      if (!holes || i / (64 << 10) % 2 == 0) data[i] = static_cast<char>(1 + (i / 4096 * 7 + i) % 250);
    return data;
  }

  proto::Layout LayoutOf(Fid f) {
    proto::MetadataRequest request;
    *request.mutable_getattr()->mutable_fid() = ToProto(f);
    request.mutable_getattr()->set_want_layout(true);
    return client.Call(request).attr().layout();
  }
  proto::Attr Attr(Fid f) { return client.Getattr(f).attr().attr(); }

  // Makes a file whose objects have these bytes, as a client writes them; the MDS is told.
  Fid MakeFile(const std::string& name, const std::string& data) {
    const Fid f = FidOf(client.Create(kRootFid, name));
    proto::MetadataRequest move;
    *move.mutable_move_out()->mutable_fid() = ToProto(f);
    EXPECT_THAT(client.Call(move), IsOk());
    WriteObjects(f, data);
    EXPECT_THAT(client.UpdateSize(f, data.size(), static_cast<int64_t>(data.size() / 512)), IsOk());
    return f;
  }

  template <typename Visit>
  static void ForEachPiece(const proto::Layout& layout, uint64_t size, Visit visit) {
    for (uint64_t at = 0; at < size; at += 4096) {
      const proto::Component& component = layout.components(0);
      const uint64_t stripes = static_cast<uint64_t>(component.ost_group_size()),
                     unit = component.stripe_size();
      const uint32_t stripe = static_cast<uint32_t>(at / unit % stripes);
      visit(component.ost_group(static_cast<int>(stripe)), ObjectId{layout.object_sequence(), stripe}, at,
            at / unit / stripes * unit + at % unit);
    }
  }

  void WriteObjects(Fid f, const std::string& data) {
    ForEachPiece(LayoutOf(f), data.size(), [&](OstIndex ost, ObjectId id, uint64_t at, uint64_t place) {
      const std::string block = data.substr(at, 4096);
      if (block.find_first_not_of('\0') == std::string::npos) return;
      FakeOsts::Object& object = harness.osts.objects[ost][id];
      object.parent = f;
      object.data.resize(std::max<size_t>(object.data.size(), place + block.size()));
      object.data.replace(place, block.size(), block);
      ++object.version;
    });
  }

  std::string ReadObjects(Fid f) {
    std::string data(Attr(f).size(), '\0');
    ForEachPiece(LayoutOf(f), data.size(), [&](OstIndex ost, ObjectId id, uint64_t at, uint64_t place) {
      const std::string& object = harness.osts.objects[ost][id].data;
      if (place < object.size()) {
        const std::string block = object.substr(place, std::min<uint64_t>(4096, data.size() - at));
        data.replace(at, block.size(), block);
      }
    });
    return data;
  }

  proto::AdminRequest MigrateRequest(Fid f, int stripes, uint32_t stripe_size = 64 << 10) {
    proto::AdminRequest request;
    *request.mutable_migrate()->mutable_fid() = ToProto(f);
    proto::TemplateComponent* component = request.mutable_migrate()->mutable_layout()->add_components();
    component->set_end(~uint64_t{0});
    component->set_stripe_count(stripes);
    component->set_stripe_size(stripe_size);
    return request;
  }

  // Asks until it is done.
  proto::AdminReply Ask(proto::AdminRequest request) {
    for (int i = 0; i < 1000; ++i) {
      proto::AdminReply reply = harness.Await(harness.server->Administer(request));
      if (reply.status().error() != 0 || !request.has_migrate() || reply.migrate().done()) return reply;
      EXPECT_THAT(client.Getattr(kRootFid), IsOk());  // it lives
    }
    ADD_FAILURE() << "it is never done";
    return {};
  }

  proto::AdminReply Manage(OstIndex ost, proto::ManageOst::Action action) {
    proto::AdminRequest request;
    request.mutable_manage_ost()->set_ost(ost);
    request.mutable_manage_ost()->set_action(action);
    return Ask(request);
  }

  size_t Records(Table table) {
    return harness.store.Scan(TableKey(table), PrefixEnd(TableKey(table)), 1000)->size();
  }

  static std::set<OstIndex> OstsOf(const proto::Layout& layout) {
    std::set<OstIndex> osts;
    for (const auto& component : layout.components())
      osts.insert(component.ost_group().begin(), component.ost_group().end());
    return osts;
  }

  Harness harness;
  TestClient client{harness};
};

}  // namespace nacre::mds
