#include "store/server/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"

namespace tensorbus::store {
namespace {

constexpr std::string_view magic = "tensorbus store journal 1\n";
// Size, checksum of the size, checksum of the payload. The size has a checksum of its own, so that
// a damaged size cannot pass for a record that was cut by the end of the file.
constexpr std::size_t record_header_size = 4 + 4 + 8;
// A small journal is never worth rewriting.
constexpr std::size_t smallest_compaction = 16 * 1024 * 1024;

std::uint32_t check_of(std::uint32_t size) { return XXH32(&size, sizeof size, 0); }

std::string encode_record(const JournalRecord& record) {
  if (Journal::size_of(record) > UINT32_MAX) {
    throw Error(Code::failed, "a change of more than 4 GiB cannot be kept in a journal");
  }
  Encoder encoder;
  encoder.raw(std::string(record_header_size, '\0'));
  encoder.integer(static_cast<std::uint8_t>(record.op)).string(record.session);
  encoder.integer(record.id).integer(record.settled).raw(record.body);
  const std::string_view payload = std::string_view(encoder.bytes()).substr(record_header_size);
  const std::uint64_t checksum = XXH3_64bits(payload.data(), payload.size());
  const auto size = static_cast<std::uint32_t>(payload.size());
  encoder.patch(0, size);
  encoder.patch(4, check_of(size));
  encoder.patch(8, checksum);
  return std::move(encoder).bytes();
}

JournalRecord decode(std::string_view payload) {
  Decoder decoder(payload);
  JournalRecord record;
  record.op = static_cast<Op>(decoder.integer<std::uint8_t>());
  record.session = decoder.string();
  record.id = decoder.integer<std::uint64_t>();
  record.settled = decoder.integer<std::uint64_t>();
  record.body = decoder.raw(decoder.left());
  return record;
}

void write_fully(const os::Fd& file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) os::throw_errno("journal " + path + " cannot be written");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string read_fully(const os::Fd& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) os::throw_errno("journal " + path);
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count =
        ::pread(file.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) os::throw_errno("journal " + path + " cannot be read");
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  bytes.resize(got);
  return bytes;
}

os::Fd open_own_file(const std::string& path, int flags) {
  os::Fd file(
      ::open(path.c_str(), flags | O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file && errno == ELOOP) {
    throw Error(Code::failed, "journal " + path + " is a symbolic link; give the file itself");
  }
  if (!file) os::throw_errno("journal " + path + " cannot be opened");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) os::throw_errno("journal " + path);
  if (!S_ISREG(info.st_mode)) {
    throw Error(Code::failed, "journal " + path + " is not a regular file");
  }
  if (info.st_uid != ::geteuid()) {
    throw Error(Code::failed, fmt::format("journal {} belongs to user {}, not to us (user {})",
                                          path, info.st_uid, ::geteuid()));
  }
  return file;
}

void take_lock(const os::Fd& file, const std::string& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    // A compaction may have put another file there since we opened this one.
    struct stat ours {};
    struct stat named {};
    if (::fstat(file.get(), &ours) == 0 && ::stat(path.c_str(), &named) == 0 &&
        ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
      return;
    }
    throw Error(Code::failed, "journal " + path + " was replaced while it was opened; try again");
  }
  if (errno != EWOULDBLOCK) os::throw_errno("journal " + path + " cannot be locked");
  throw Error(Code::failed, "journal " + path + " is in use by another server");
}

}  // namespace

Journal::Journal(const std::string& path,
                 const std::function<void(const JournalRecord&)>& replay_record)
    : path_(path), file_(open_own_file(path, 0)) {
  take_lock(file_.fd(), path_);
  // The file of a server that was killed while it compacted.
  ::unlink(new_path().c_str());
  replay(replay_record);
  if (::lseek(file_.get(), static_cast<off_t>(size_), SEEK_SET) < 0) os::throw_errno(path_);
}

void Journal::replay(const std::function<void(const JournalRecord&)>& replay_record) {
  const std::string bytes = read_fully(file_.fd(), path_);
  if (bytes.empty()) {
    write_fully(file_.fd(), magic, path_);
    size_ = magic.size();
    return;
  }
  if (!bytes.starts_with(magic)) {
    throw Error(Code::failed, fmt::format("{} is not a journal of this store (or its first bytes "
                                          "are gone); it was left as it is",
                                          path_));
  }
  const auto corrupt = [&](std::size_t at, const std::string& why) {
    throw Error(Code::failed, fmt::format("journal {} is corrupt at byte {} of {}: {}; it was left "
                                          "as it is. Restore a copy, or move it away to start "
                                          "empty",
                                          path_, at, bytes.size(), why));
  };
  std::size_t at = magic.size();
  std::size_t records = 0;
  while (at < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(at);
    std::uint32_t size = 0;
    std::uint32_t size_check = 0;
    std::uint64_t checksum = 0;
    if (rest.size() >= record_header_size) {
      std::memcpy(&size, rest.data(), sizeof size);
      std::memcpy(&size_check, rest.data() + 4, sizeof size_check);
      std::memcpy(&checksum, rest.data() + 8, sizeof checksum);
      if (check_of(size) != size_check) corrupt(at, "the record's size does not fit its checksum");
    }
    if (rest.size() < record_header_size || rest.size() - record_header_size < size) {
      log::warn("journal {}: the last {} bytes are an unfinished record; dropped", path_,
                rest.size());
      break;
    }
    const std::string_view payload = rest.substr(record_header_size, size);
    if (XXH3_64bits(payload.data(), payload.size()) != checksum) {
      corrupt(at, "the checksum does not fit");
    }
    try {
      replay_record(decode(payload));
    } catch (const Error& error) {
      corrupt(at, error.what());
    }
    at += record_header_size + size;
    ++records;
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(at)) != 0) os::throw_errno(path_);
  size_ = at;
  compacted_size_ = at;
  log::info("journal {}: {} records replayed", path_, records);
}

std::size_t Journal::size_of(const JournalRecord& record) noexcept {
  constexpr std::size_t op_lengths_and_ids = 1 + 4 + 8 + 8;
  return record_header_size + op_lengths_and_ids + record.session.size() + record.body.size();
}

void Journal::append(const JournalRecord& record) { pending_ += encode_record(record); }

void Journal::flush() {
  if (pending_.empty()) return;
  write_fully(file_.fd(), pending_, path_);
  size_ += pending_.size();
  pending_.clear();
}

bool Journal::wants_compaction() const noexcept {
  return size_ > smallest_compaction && size_ > 2 * compacted_size_;
}

void Journal::compact(const std::function<void()>& write_all) {
  flush();
  const std::size_t before = size_;
  write_all();
  try {
    replace_file();
    log::info("journal {} compacted from {} to {} bytes", path_, before, size_);
  } catch (const Error& error) {
    log::warn("{}; the journal is not compacted and goes on as it is", error.what());
    ::unlink(new_path().c_str());
  }
  pending_.clear();
  compacted_size_ = size_;
}

void Journal::replace_file() {
  const std::string fresh_path = new_path();
  ::unlink(fresh_path.c_str());
  os::Fd fresh = open_own_file(fresh_path, O_EXCL);
  take_lock(fresh, fresh_path);
  write_fully(fresh, magic, fresh_path);
  write_fully(fresh, pending_, fresh_path);
  // The old file goes away only when the new one is safe.
  if (::fsync(fresh.get()) != 0) os::throw_errno("journal " + fresh_path);
  if (::rename(fresh_path.c_str(), path_.c_str()) != 0) os::throw_errno("journal " + path_);
  file_ = os::UnsharedFd(std::move(fresh));
  size_ = magic.size() + pending_.size();
}

}  // namespace tensorbus::store
