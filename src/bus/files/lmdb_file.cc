#include "bus/files/lmdb_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/log.h"
#include "os/process/process.h"
#include "tensorbus/status.h"
#include "wire/message.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t room_to_erase = 1024 * 1024;
constexpr const char* header_key = "tensorbus";
// LMDB's own limit is 511. Longer keys are kept under a hash, with the key before the value.
constexpr std::size_t longest_key = 480;
constexpr std::string_view long_key_prefix = "~long/";
// How LMDB 0.9 begins a page of meta data: 16 bytes of page header, then these.
constexpr std::uint32_t lmdb_magic = 0xBEEFC0DE;
struct Meta {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t address;
  std::uint64_t map_size;
  std::uint32_t page_size;
};
constexpr std::size_t meta_offset = 16;
constexpr std::size_t transaction_offset = meta_offset + 24 + 2 * 48 + 8;

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw Error(Code::failed, path + " " + why);
}

void check_ours(int file, const std::string& path) {
  struct stat info {};
  if (::fstat(file, &info) != 0) os::throw_errno(path);
  if (!S_ISREG(info.st_mode)) refuse_file(path, "is not a regular file; give another path");
  if (info.st_uid != ::geteuid()) {
    refuse_file(path, fmt::format("belongs to user {}, not to us (user {}); give another path",
                                  info.st_uid, ::geteuid()));
  }
  if (info.st_nlink != 1) {
    refuse_file(path, "has other names (hard links); give another path or remove it");
  }
}

os::Fd open_or_create(const std::string& path) {
  constexpr int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  for (int tries = 0; tries < 3; ++tries) {
    os::Fd file(::open(path.c_str(), flags));
    if (!file && errno == ENOENT)
      file = os::Fd(::open(path.c_str(), flags | O_CREAT | O_EXCL, 0600));
    if (file) return file;
    if (errno == ELOOP)
      refuse_file(path, "is a symbolic link; give the file itself or remove the link");
    if (errno == EISDIR) refuse_file(path, "is not a regular file; give another path");
    if (errno == ENOENT)
      refuse_file(path, "cannot be made: there is no such folder; give another path");
    if (errno != EEXIST) throw Error(Code::failed, os::errno_message(path, errno));
  }
  refuse_file(path, "comes and goes; is another program using it?");
}

void take_lock(const os::Fd& file, const std::string& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) os::throw_errno(path + " cannot be locked");
    refuse_file(path,
                "is in use by another agent: two agents must not have the same rank or paths");
  }
  struct stat ours {};
  struct stat named {};
  if (::fstat(file.get(), &ours) != 0 || ::lstat(path.c_str(), &named) != 0 ||
      ours.st_ino != named.st_ino || ours.st_dev != named.st_dev) {
    refuse_file(path, "was replaced while it was opened; try again");
  }
}

// The file is empty, or whole as its own first page says: a shorter file would be a SIGBUS. True if
// there is something in the file.
bool check_whole(int file, const std::string& path) {
  struct stat info {};
  if (::fstat(file, &info) != 0) os::throw_errno(path);
  if (info.st_size == 0) return false;
  std::array<char, 512> page{};
  const ssize_t got = ::pread(file, page.data(), page.size(), 0);
  Meta meta{};
  std::memcpy(&meta, page.data() + meta_offset, sizeof meta);
  if (got != static_cast<ssize_t>(page.size()) || meta.magic != lmdb_magic || meta.version != 1 ||
      meta.page_size < 512 || meta.page_size > 65536) {
    refuse_file(path,
                "is no LMDB file, or its first bytes are destroyed; move it away or give another "
                "path");
  }
  std::array<char, 512> second{};
  const auto second_at = static_cast<off_t>(meta.page_size);
  const bool has_second =
      ::pread(file, second.data(), second.size(), second_at) == static_cast<ssize_t>(second.size());
  std::uint64_t transactions = 0;
  for (const auto* each : {page.data(), second.data()}) {
    std::uint64_t number = 0;
    std::memcpy(&number, each + transaction_offset, sizeof number);
    transactions = std::max(transactions, number);
  }
  if (static_cast<std::uint64_t>(info.st_size) >= meta.map_size && has_second &&
      meta.map_size >= 2 * meta.page_size) {
    return true;
  }
  if (transactions == 0 && static_cast<std::uint64_t>(info.st_size) <= 2 * meta.page_size) {
    // The agent that made the file died between two steps of that.
    if (::ftruncate(file, 0) != 0) os::throw_errno(path);
    return false;
  }
  refuse_file(path,
              fmt::format("is cut short: {} of {} bytes are left (or another program made it); "
                          "move it away to start empty",
                          info.st_size, meta.map_size));
}

// LMDB would follow a link here.
void make_lock_file(const std::string& path) {
  const std::string lock = path + "-lock";
  if (::unlink(lock.c_str()) != 0 && errno != ENOENT) {
    throw Error(Code::failed, os::errno_message("cannot replace " + lock, errno));
  }
  const os::Fd made(::open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made) throw Error(Code::failed, os::errno_message("cannot make " + lock, errno));
}

MDB_val value_of(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }
std::string_view view_of(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

bool is_long(std::string_view key) {
  return key.size() > longest_key || key.empty() || key.starts_with(long_key_prefix);
}
std::string stored_key(std::string_view key) {
  if (!is_long(key)) return std::string(key);
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return fmt::format("{}{:016x}{:016x}", long_key_prefix, hash.high64, hash.low64);
}
std::string stored_value(std::string_view key, std::string_view value) {
  if (!is_long(key)) return std::string(value);
  return std::move(Encoder().string(key).raw(value)).bytes();
}

// Of no kind and version 0 if another release wrote it in another way.
LmdbHeader header_from(std::string_view bytes) try {
  return wire::read<LmdbHeader>(bytes);
} catch (const Error&) {
  return {};
}

// Ends as aborted unless committed.
class Transaction {
 public:
  Transaction(MDB_env* environment, unsigned flags)
      : error_(mdb_txn_begin(environment, nullptr, flags, &transaction_)) {}
  ~Transaction() {
    if (transaction_ != nullptr && error_ == 0) mdb_txn_abort(transaction_);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  MDB_txn* get() const noexcept { return transaction_; }
  int error() const noexcept { return error_; }
  int commit() { return mdb_txn_commit(std::exchange(transaction_, nullptr)); }

 private:
  MDB_txn* transaction_ = nullptr;
  int error_;
};

// Entries in the order of their keys; `check` throws for an error of LMDB's.
template <typename Check>
std::vector<std::pair<std::string, std::string>> scan_table(MDB_txn* transaction, MDB_dbi table,
                                                            std::string_view prefix, Check check) {
  std::vector<std::pair<std::string, std::string>> entries;
  MDB_cursor* cursor = nullptr;
  check(mdb_cursor_open(transaction, table, &cursor));
  const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> owner(cursor, mdb_cursor_close);
  const auto walk = [&](std::string_view from, const auto& take) {
    MDB_val key = value_of(from);
    MDB_val value{};
    int step = mdb_cursor_get(cursor, &key, &value, from.empty() ? MDB_FIRST : MDB_SET_RANGE);
    while (step == 0 && view_of(key).starts_with(from)) {
      take(view_of(key), view_of(value));
      step = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (step != MDB_NOTFOUND) check(step);
  };
  walk(prefix, [&](std::string_view key, std::string_view value) {
    if (key != header_key && !is_long(key)) entries.emplace_back(key, value);
  });
  walk(long_key_prefix, [&](std::string_view, std::string_view value) {
    Decoder decoder(value);
    const std::string_view key = decoder.string();
    if (key.starts_with(prefix)) entries.emplace_back(key, decoder.raw(decoder.left()));
  });
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

LmdbFile::LmdbFile(std::string path, std::string kind, std::size_t bytes)
    : path_(std::move(path)), kind_(std::move(kind)), bytes_(bytes), file_(open_or_create(path_)) {
  check_ours(file_.get(), path_);
  take_lock(file_, path_);
  try {
    if (check_whole(file_.get(), path_)) {
      open_environment();
      check_header();
    }
    if (environment_ == nullptr) {
      open_environment();
      if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) os::throw_errno(path_);
      write({{header_key, wire::write(LmdbHeader{kind_, LmdbHeader::current, os::boot_id()})}});
    }
    if (::fchmod(file_.get(), 0600) != 0) os::throw_errno(path_);
  } catch (...) {
    if (environment_ != nullptr) ::unlink((path_ + "-lock").c_str());
    close_environment();
    throw;
  }
}

LmdbFile::~LmdbFile() {
  close_environment();
  ::unlink((path_ + "-lock").c_str());
  if (remove_) ::unlink(path_.c_str());
}

void LmdbFile::open_environment() {
  make_lock_file(path_);
  int error = mdb_env_create(&environment_);
  if (error == 0) error = mdb_env_set_mapsize(environment_, bytes_);
  if (error == 0) {
    error = mdb_env_open(environment_, path_.c_str(), MDB_NOSUBDIR | MDB_NOSYNC | MDB_NOTLS, 0600);
  }
  if (error != 0) fail("cannot be opened", error);
  int fd = -1;
  struct stat opened {};
  struct stat checked {};
  if (mdb_env_get_fd(environment_, &fd) != 0 || ::fstat(fd, &opened) != 0 ||
      ::fstat(file_.get(), &checked) != 0 || opened.st_ino != checked.st_ino ||
      opened.st_dev != checked.st_dev) {
    refuse_file(path_, "was replaced while it was opened; try again");
  }
  const Transaction transaction(environment_, MDB_RDONLY);
  error = transaction.error();
  if (error == 0) error = mdb_dbi_open(transaction.get(), nullptr, 0, &table_);
  if (error != 0) fail("cannot be opened", error);
}

void LmdbFile::close_environment() noexcept {
  if (environment_ != nullptr) mdb_env_close(std::exchange(environment_, nullptr));
}

void LmdbFile::check_header() {
  const std::optional<std::string> bytes = get(header_key);
  if (!bytes) {
    refuse_file(path_, "is an LMDB file of another program; give another path");
  }
  const LmdbHeader header = header_from(*bytes);
  if (!header.kind.empty() && header.kind != kind_) {
    refuse_file(path_, "holds the " + header.kind + " of an agent, not its " + kind_);
  }
  const bool same_release = header.version == LmdbHeader::current;
  if (same_release && header.boot == os::boot_id()) return;
  log::info("{} is from {}; starting empty", path_,
            same_release ? "before the last boot" : "another release");
  close_environment();
  if (::ftruncate(file_.get(), 0) != 0) os::throw_errno(path_);
}

void LmdbFile::write(const std::vector<Change>& changes) {
  const auto erases = [](const Change& change) { return !change.value; };
  if (std::ranges::all_of(changes, erases)) return make_room(changes);
  if (const int error = try_to_write(changes); error != 0) fail("cannot be written", error);
}

void LmdbFile::make_room(const std::vector<Change>& changes) {
  int error = try_to_write(changes);
  if (error == MDB_MAP_FULL) error = write_when_full(changes);
  if (error != 0) fail("cannot be written", error);
}

// Erasing takes pages first and gives more back later: what is full could never be emptied.
int LmdbFile::write_when_full(const std::vector<Change>& changes) {
  const std::size_t more = bytes_ + room_to_erase;
  if (::ftruncate(file_.get(), static_cast<off_t>(more)) != 0) return errno;
  int error = mdb_env_set_mapsize(environment_, more);
  if (error == 0) error = try_to_write(changes);
  mdb_env_set_mapsize(environment_, bytes_);
  return error;
}

int LmdbFile::try_to_write(const std::vector<Change>& changes) {
  Transaction transaction(environment_, 0);
  int error = transaction.error();
  for (const Change& change : changes) {
    if (error != 0) break;
    const std::string stored = stored_key(change.key);
    MDB_val key = value_of(stored);
    if (change.value) {
      const std::string bytes = stored_value(change.key, *change.value);
      MDB_val value = value_of(bytes);
      error = mdb_put(transaction.get(), table_, &key, &value, 0);
    } else {
      error = mdb_del(transaction.get(), table_, &key, nullptr);
      if (error == MDB_NOTFOUND) error = 0;
    }
  }
  return error == 0 ? transaction.commit() : error;
}

std::optional<std::string> LmdbFile::get(const std::string& key) {
  const Transaction transaction(environment_, MDB_RDONLY);
  int error = transaction.error();
  const std::string stored = stored_key(key);
  MDB_val wanted = value_of(stored);
  MDB_val found{};
  if (error == 0) error = mdb_get(transaction.get(), table_, &wanted, &found);
  if (error == MDB_NOTFOUND) return std::nullopt;
  if (error != 0) fail("cannot be read", error);
  std::string_view bytes = view_of(found);
  if (is_long(key)) {
    Decoder decoder(bytes);
    if (decoder.string() != key) return std::nullopt;
    bytes = decoder.raw(decoder.left());
  }
  return std::string(bytes);
}

std::vector<std::pair<std::string, std::string>> LmdbFile::scan(const std::string& prefix) {
  const auto check = [this](int error) {
    if (error != 0) fail("cannot be read", error);
  };
  const Transaction transaction(environment_, MDB_RDONLY);
  check(transaction.error());
  return scan_table(transaction.get(), table_, prefix, check);
}

void LmdbFile::fail(const std::string& what, int error) const {
  if (error == MDB_MAP_FULL) {
    throw Error(Code::queue_full, fmt::format("{} is full ({} MiB)", path_, bytes_ >> 20));
  }
  const bool damaged = error == MDB_CORRUPTED || error == MDB_PAGE_NOTFOUND || error == MDB_PANIC ||
                       error == MDB_INVALID || error == MDB_VERSION_MISMATCH;
  refuse_file(path_, fmt::format("{}: {}{}", what, mdb_strerror(error),
                                 damaged ? "; it is damaged: move it away to start empty" : ""));
}

void check_lmdb_file(int file, const std::string& path) {
  check_ours(file, path);
  if (!check_whole(file, path)) refuse_file(path, "is empty: no agent has written to it");
}

namespace {

// A file to be read without locks: its agent is silent, or writes little.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    if (!file_) throw Error(Code::failed, os::errno_message(path, errno));
    check_lmdb_file(file_.get(), path);
    MDB_env* made = nullptr;
    check(mdb_env_create(&made));
    environment_.reset(made);
    const std::string same = "/proc/self/fd/" + std::to_string(file_.get());
    check(mdb_env_open(made, same.c_str(), MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0));
    transaction_.emplace(made, MDB_RDONLY);
    check(transaction_->error());
    check(mdb_dbi_open(transaction_->get(), nullptr, 0, &table_));
  }

  std::optional<std::string> get(std::string_view key) const {
    MDB_val wanted = value_of(key);
    MDB_val found{};
    if (mdb_get(transaction_->get(), table_, &wanted, &found) != 0) return std::nullopt;
    return std::string(view_of(found));
  }
  std::optional<std::string> last_key(std::string_view prefix) const {
    MDB_cursor* cursor = nullptr;
    check(mdb_cursor_open(transaction_->get(), table_, &cursor));
    const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> owner(cursor, mdb_cursor_close);
    const std::string beyond = std::string(prefix) + '\xff';
    MDB_val key = value_of(beyond);
    MDB_val value{};
    const bool later = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE) == 0;
    if (mdb_cursor_get(cursor, &key, &value, later ? MDB_PREV : MDB_LAST) != 0) return std::nullopt;
    if (!view_of(key).starts_with(prefix)) return std::nullopt;
    return std::string(view_of(key));
  }
  LmdbHeader header() const {
    const auto bytes = get(header_key);
    if (!bytes) refuse_file(path_, "is an LMDB file of another program");
    return header_from(*bytes);
  }
  std::vector<std::pair<std::string, std::string>> scan(const std::string& prefix) const {
    return scan_table(transaction_->get(), table_, prefix, [this](int error) { check(error); });
  }

 private:
  void check(int error) const {
    if (error != 0) refuse_file(path_, std::string("cannot be read: ") + mdb_strerror(error));
  }

  const std::string& path_;
  const os::Fd file_;
  std::unique_ptr<MDB_env, decltype(&mdb_env_close)> environment_{nullptr, mdb_env_close};
  std::optional<Transaction> transaction_;
  MDB_dbi table_ = 0;
};

}  // namespace

std::optional<std::string> look_into_lmdb_file(const std::string& path, const std::string& kind,
                                               const std::string& key) noexcept try {
  const ReadOnlyFile file(path);
  if (file.header().kind != kind) return std::nullopt;
  return file.get(key);
} catch (...) {
  return std::nullopt;
}

std::optional<std::string> last_key_in_lmdb_file(const std::string& path, const std::string& kind,
                                                 const std::string& prefix) noexcept try {
  const ReadOnlyFile file(path);
  if (file.header().kind != kind) return std::nullopt;
  return file.last_key(prefix);
} catch (...) {
  return std::nullopt;
}

LmdbContent read_lmdb_file(const std::string& path) {
  const ReadOnlyFile file(path);
  const LmdbHeader header = file.header();
  if (header.version != LmdbHeader::current) {
    refuse_file(path, "was written by another release of tensorbus");
  }
  return {header, file.scan("")};
}

}  // namespace tensorbus::bus
