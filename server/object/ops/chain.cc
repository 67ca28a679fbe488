// Handlers of the requests that the members of a chain and the MGS send: SetChain, ApplyChange, LearnState.
#include <algorithm>
#include <cerrno>

#include "rpc/convert.h"
#include "server/object/chain.h"
#include "server/object/change_proto.h"
#include "server/object/ops/call_source.h"
#include "server/object/ops/ops.h"

namespace nacre::ost {
namespace {

constexpr int kMostEdits = 16384;

// Checks what the store takes for granted: order and limits of the edits, and one checksum and 4 KiB of
// memory for each written block.
StatusOr<ApplyArgs> ParseChange(const OpContext& context) {
  const proto::ApplyChange& change = context.request->apply();
  ApplyArgs args;
  args.object = FromProto(change.object());
  args.parent = FromProto(change.parent());
  if (change.has_before()) args.applied.before = FromProto(change.before());
  args.applied.after = FromProto(change.after());
  args.applied.size = change.size();
  args.destroy = change.destroy();
  args.crc.assign(change.crc().begin(), change.crc().end());
  args.by = context.by;
  args.ends_request = change.ends_request();
  if (change.edits_size() > kMostEdits)
    return ErrnoError(EINVAL, absl::StrCat("a change with ", change.edits_size(), " edits"));
  uint64_t end = 0, written = 0;
  for (const proto::BlockEdit& edit : change.edits()) {
    if (edit.count() == 0 || edit.first() < end || edit.first() > kMaxObjectBlocks ||
        edit.count() > kMaxObjectBlocks - edit.first()) {
      return ErrnoError(EINVAL, absl::StrCat("a change of ", edit.count(), " blocks at ", edit.first(),
                                             " behind one that ends at ", end));
    }
    end = edit.first() + edit.count();
    ApplyArgs::Edit& out = args.edits.emplace_back();
    out.first = edit.first();
    out.count = edit.count();
    out.kind = edit.kind() == proto::BlockEdit::WRITTEN     ? ApplyArgs::Edit::kWritten
               : edit.kind() == proto::BlockEdit::UNWRITTEN ? ApplyArgs::Edit::kUnwritten
                                                            : ApplyArgs::Edit::kHole;
    if (out.kind != ApplyArgs::Edit::kHole && out.count > kMaxRequestBytes / kBlockSize)
      return ErrnoError(EINVAL, absl::StrCat("a change that maps ", out.count, " blocks at once"));
    if (out.kind == ApplyArgs::Edit::kWritten) written += out.count;
  }
  if (written != args.crc.size()) {
    return ErrnoError(EINVAL, absl::StrCat(args.crc.size(), " checksums for ", written, " written blocks"));
  }
  if (written > 0 && (context.call->memory_kind() != CallMemory::kGetSource ||
                      context.call->memory_size() < written * kBlockSize)) {
    return ErrnoError(EINVAL, absl::StrCat("a change with ", written, " written blocks and a memory of ",
                                           context.call->memory_size(), " bytes"));
  }
  args.bad.assign(change.bad().begin(), change.bad().end());
  const bool filled = !args.applied.before;
  if (!args.bad.empty() && (!filled || !std::ranges::is_sorted(args.bad) || args.bad.back() >= written))
    return ErrnoError(EINVAL, absl::StrCat(args.bad.size(), " bad ones of ", written, " written blocks"));
  return args;
}

Chain* ChainOf(const OpContext& context) { return context.target->chain.get(); }

Status NoChain() {
  return ErrnoError(EINVAL, "this OST has one member here (copies = 1 in its configuration)");
}

}  // namespace

Task<Status> HandOnRequest(OpContext context) {
  if (ChainOf(context) == nullptr) co_return OkStatus();
  proto::ObjectRequest request = *context.request;
  co_return co_await ChainOf(context)->HandOnRequest(std::move(request));
}

bool IsHead(const OpContext& context) {
  return ChainOf(context) == nullptr || ChainOf(context)->CheckHead().ok();
}

Task<Status> SetChainOp(OpContext context) {
  if (ChainOf(context) == nullptr) co_return NoChain();
  co_return ChainOf(context)->Set(context.request->set_chain());
}

Task<Status> ApplyOp(OpContext context) {
  Chain* chain = ChainOf(context);
  if (chain == nullptr) co_return NoChain();
  if (!context.request->apply().has_object()) co_return OkStatus();  // its answer is recorded behind this
  CO_ASSIGN_OR_RETURN(ApplyArgs args, ParseChange(context));
  ObjectStore& store = *context.target->store;
  // A member that is being filled may have an object of this id from before.
  if (args.applied.before == ObjectVersion{} && !args.destroy && chain->joining()) {
    CO_ASSIGN_OR_RETURN(std::optional<ObjectRecord> old, store.Stat(args.object));
    if (old && old->full_version() != args.applied.after) {
      auto gone = co_await store.Destroy(args.object, context.by, &kIncomplete);
      CO_RETURN_IF_ERROR(gone.status());
    }
  }
  const ChainStep step = chain->place() == 2 ? ChainStep::kIntoThird : ChainStep::kIntoSecond;
  CO_ASSIGN_OR_RETURN(std::shared_ptr<BufferPool> pool,
                      context.core->chain_buffers.At(step, &context.core->environment.transport));
  Allotment memory =
      co_await pool->admission().Admit(context.request->session(), context.request->ost(), args.crc.size());
  CallSource source(context.call, 0);
  BufferPool* buffers = pool.get();
  co_return co_await store.Apply(std::move(args), &source, buffers, &memory);
}

Task<Status> LearnOp(OpContext context) {
  if (ChainOf(context) == nullptr) co_return NoChain();
  const proto::LearnState& learn = context.request->learn();
  if (learn.begin()) CO_RETURN_IF_ERROR(co_await context.target->sessions->ForgetAnswers());
  if (learn.fenced_size() > 0) {
    std::vector<SessionId> fenced(learn.fenced().begin(), learn.fenced().end());
    CO_RETURN_IF_ERROR(co_await context.target->sessions->Fence(std::move(fenced)));
  }
  std::vector<SlotAnswer> answers;
  for (const proto::KeptAnswer& answer : learn.answers())
    answers.push_back({{answer.session(), 0}, {answer.sequence(), answer.low_water(), answer.delta()}});
  if (!answers.empty()) CO_RETURN_IF_ERROR(co_await context.target->sessions->Learn(std::move(answers)));
  std::vector<Growth> growths;
  for (const proto::GrownObject& grown : learn.grown())
    growths.push_back({grown.session(), FromProto(grown.object())});
  if (!growths.empty()) CO_RETURN_IF_ERROR(co_await context.target->store->LearnGrowth(std::move(growths)));
  if (learn.has_losses()) CO_RETURN_IF_ERROR(co_await context.target->store->TakeLosses(learn.losses()));
  co_return OkStatus();
}

}  // namespace nacre::ost
