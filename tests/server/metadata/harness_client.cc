#include "rpc/mutation.h"
#include "tests/server/metadata/harness.h"

namespace nacre::mds {

TestClient::TestClient(Harness& harness, uint32_t uid, uint32_t gid, std::vector<uint32_t> groups)
    : harness(harness), nonce(harness.random.Next()), uid(uid), gid(gid), groups(std::move(groups)) {
  Connect();
}

proto::MetadataReply TestClient::Connect() {
  peer = std::make_shared<FakePeer>("test");
  proto::MetadataRequest request;
  request.mutable_connect()->set_name("test");
  request.mutable_connect()->set_version(3);
  request.mutable_connect()->set_session(session);
  request.mutable_connect()->set_nonce(nonce);
  auto reply = harness.Await(harness.server->Handle(peer, request));
  if (reply.has_connect()) session = reply.connect().session();
  return reply;
}

void TestClient::Reconnect(const std::vector<Fid>& open) {
  ASSERT_THAT(Connect(), IsOk());
  proto::MetadataRequest reclaim;
  reclaim.mutable_reclaim()->set_last(true);
  for (const Fid& fid : open) {
    proto::OpenFile* file = reclaim.mutable_reclaim()->add_opens();
    *file->mutable_fid() = ToProto(fid);
    file->set_count(1);
  }
  ASSERT_THAT(Call(reclaim), IsOk());
}

void TestClient::StayFor(Duration time) {
  const Duration end = harness.clock.Now() + time;
  while (harness.clock.Now() < end) {
    harness.RunFor(std::min<Duration>(end - harness.clock.Now(), std::chrono::seconds(10)));
    proto::MetadataRequest alive;
    alive.mutable_keep_alive();
    ASSERT_THAT(Call(alive), IsOk());
  }
}

void TestClient::As(uint32_t new_uid, uint32_t new_gid, std::vector<uint32_t> new_groups) {
  uid = new_uid;
  gid = new_gid;
  groups = std::move(new_groups);
}

proto::MetadataRequest TestClient::Prepare(proto::MetadataRequest request) {
  request.set_session(session);
  request.mutable_credentials()->set_uid(uid);
  request.mutable_credentials()->set_gid(gid);
  for (uint32_t group : groups) request.mutable_credentials()->add_groups(group);
  if (!IsMutation(request)) return request;
  request.set_sequence(++sequence);
  unanswered.insert(sequence);
  request.set_low_water(*unanswered.begin());
  return request;
}

proto::MetadataReply TestClient::Call(proto::MetadataRequest request) {
  request = Prepare(std::move(request));
  auto reply = harness.Await(harness.server->Handle(peer, request));
  unanswered.erase(request.sequence());
  return reply;
}

void TestClient::Start(proto::MetadataRequest request,
                       std::shared_ptr<std::optional<proto::MetadataReply>> reply) {
  request = Prepare(std::move(request));
  Spawn(harness.context.get_executor(), harness.server->Handle(peer, std::move(request)),
        [reply](proto::MetadataReply value) { *reply = std::move(value); });
}

proto::MetadataReply TestClient::Lookup(Fid parent, const std::string& name, bool layout) {
  proto::MetadataRequest request;
  *request.mutable_lookup()->mutable_parent() = ToProto(parent);
  request.mutable_lookup()->set_name(name);
  request.mutable_lookup()->set_want_layout(layout);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Getattr(Fid fid) {
  proto::MetadataRequest request;
  *request.mutable_getattr()->mutable_fid() = ToProto(fid);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Create(Fid parent, const std::string& name, uint32_t mode, uint32_t flags,
                                        bool exclusive) {
  proto::MetadataRequest request;
  *request.mutable_create()->mutable_parent() = ToProto(parent);
  request.mutable_create()->set_name(name);
  request.mutable_create()->set_mode(mode);
  request.mutable_create()->set_flags(flags);
  request.mutable_create()->set_exclusive(exclusive);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Mknod(Fid parent, const std::string& name, uint32_t mode, uint64_t rdev,
                                       const std::string& target) {
  proto::MetadataRequest request;
  *request.mutable_mknod()->mutable_parent() = ToProto(parent);
  request.mutable_mknod()->set_name(name);
  request.mutable_mknod()->set_mode(mode);
  request.mutable_mknod()->set_rdev(rdev);
  request.mutable_mknod()->set_target(target);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Readlink(Fid fid) {
  proto::MetadataRequest request;
  *request.mutable_readlink()->mutable_fid() = ToProto(fid);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Unlink(Fid parent, const std::string& name, bool keep_open) {
  proto::MetadataRequest request;
  *request.mutable_unlink()->mutable_parent() = ToProto(parent);
  request.mutable_unlink()->set_name(name);
  request.mutable_unlink()->set_keep_open(keep_open);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Rmdir(Fid parent, const std::string& name) {
  proto::MetadataRequest request;
  *request.mutable_unlink()->mutable_parent() = ToProto(parent);
  request.mutable_unlink()->set_name(name);
  request.mutable_unlink()->set_directory(true);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Rename(Fid parent, const std::string& name, Fid new_parent,
                                        const std::string& new_name, uint32_t flags) {
  proto::MetadataRequest request;
  *request.mutable_rename()->mutable_parent() = ToProto(parent);
  request.mutable_rename()->set_name(name);
  *request.mutable_rename()->mutable_new_parent() = ToProto(new_parent);
  request.mutable_rename()->set_new_name(new_name);
  request.mutable_rename()->set_flags(flags);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Link(Fid fid, Fid parent, const std::string& name) {
  proto::MetadataRequest request;
  *request.mutable_link()->mutable_fid() = ToProto(fid);
  *request.mutable_link()->mutable_parent() = ToProto(parent);
  request.mutable_link()->set_name(name);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Readdir(Fid fid, uint64_t cookie, uint32_t limit, bool plus) {
  proto::MetadataRequest request;
  *request.mutable_readdir()->mutable_fid() = ToProto(fid);
  request.mutable_readdir()->set_cookie(cookie);
  request.mutable_readdir()->set_limit(limit);
  request.mutable_readdir()->set_plus(plus);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Open(Fid fid, uint32_t flags) {
  proto::MetadataRequest request;
  *request.mutable_open()->mutable_fid() = ToProto(fid);
  request.mutable_open()->set_flags(flags);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Close(Fid fid, uint32_t count, bool write) {
  proto::MetadataRequest request;
  *request.mutable_close()->mutable_fid() = ToProto(fid);
  request.mutable_close()->set_count(count);
  request.mutable_close()->set_write(write);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::UpdateSize(Fid fid, uint64_t size, int64_t blocks) {
  proto::MetadataRequest request;
  *request.mutable_update_size()->mutable_fid() = ToProto(fid);
  request.mutable_update_size()->set_size(size);
  request.mutable_update_size()->set_blocks_delta(blocks);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Truncate(Fid fid, uint64_t size) {
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = ToProto(fid);
  request.mutable_setattr()->set_set_size(true);
  request.mutable_setattr()->set_size(size);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Chmod(Fid fid, uint32_t mode) {
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = ToProto(fid);
  request.mutable_setattr()->set_set_mode(true);
  request.mutable_setattr()->set_mode(mode);
  return Call(std::move(request));
}

proto::MetadataReply TestClient::Chown(Fid fid, int64_t new_uid, int64_t new_gid) {
  proto::MetadataRequest request;
  *request.mutable_setattr()->mutable_fid() = ToProto(fid);
  request.mutable_setattr()->set_set_uid(new_uid >= 0);
  request.mutable_setattr()->set_uid(static_cast<uint32_t>(new_uid));
  request.mutable_setattr()->set_set_gid(new_gid >= 0);
  request.mutable_setattr()->set_gid(static_cast<uint32_t>(new_gid));
  return Call(std::move(request));
}

std::vector<std::string> TestClient::List(Fid fid, uint32_t limit) {
  std::vector<std::string> names;
  uint64_t cookie = 0;
  while (true) {
    auto reply = Readdir(fid, cookie, limit);
    EXPECT_THAT(reply, IsOk());
    for (const auto& entry : reply.readdir().entries()) {
      names.push_back(entry.name());
      cookie = entry.cookie();
    }
    if (reply.readdir().end() || ErrorOf(reply) != 0) return names;
  }
}

}  // namespace nacre::mds
