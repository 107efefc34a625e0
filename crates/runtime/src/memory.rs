//! How much memory this process may have, by the system's and the control group's account.
//!
//! # Platform
//! Linux reads `/proc/meminfo` and the control group; elsewhere nothing is known.

use std::fs;
use std::path::Path;

/// Bytes that may still be taken without swapping or breaking a control group's limit.
///
/// `None` where the system does not say.
pub fn available_memory_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|t| meminfo_available(&t));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|t| {
        group_folders(&t)
            .into_iter()
            .filter_map(|f| group_available(Path::new(&f)))
            .min()
    });
    smallest(system, group)
}

/// The smaller of what the system and a group leave; what is not known does not count.
fn smallest(system: Option<u64>, group: Option<u64>) -> Option<u64> {
    match (system, group) {
        (Some(s), Some(g)) => Some(s.min(g)),
        (s, g) => s.or(g),
    }
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Folders of the memory controllers that `/proc/self/cgroup` names, and their parents: a limit
/// may be set on any of them.
fn group_folders(text: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next(), fields.next());
        let (Some(controllers), Some(path)) = (controllers, path) else {
            continue;
        };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            c if c.split(',').any(|c| c == "memory") => "/sys/fs/cgroup/memory",
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            folders.push(format!("{root}{path}"));
            match path.rfind('/') {
                Some(cut) => path = &path[..cut],
                None => break,
            }
        }
    }
    folders
}

/// Limit less usage of one control group, version 2 or 1. Pages of files that were not used lately
/// are counted as usage, but make room at once, as they do in `MemAvailable`.
fn group_available(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (limit, used, cache) = match read("memory.max") {
        Some(limit) => (limit, read("memory.current"), "inactive_file "),
        None => (
            read("memory.limit_in_bytes")?,
            read("memory.usage_in_bytes"),
            "total_inactive_file ",
        ),
    };
    let limit = group_limit(&limit)?;
    let used: u64 = used.and_then(|u| u.trim().parse().ok()).unwrap_or(0);
    let cache = read("memory.stat").and_then(|t| stat_bytes(&t, cache));
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

/// A figure of `memory.stat`.
fn stat_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|l| l.strip_prefix(name))?;
    value.trim().parse().ok()
}

/// A control group's limit; `None` where there is none ("max", or version 1's huge number).
fn group_limit(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = 1 << 62;
    text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:  24 kB\nMemAvailable:   20480000 kB\nSwapFree: 0 kB\n";
        assert_eq!(meminfo_available(text), Some(20_480_000 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB"), None);
        assert_eq!(meminfo_available("MemAvailable: many"), None);
    }

    #[test]
    fn a_limit_of_max_is_no_limit_and_zero_is_zero() {
        assert_eq!(group_limit("max\n"), None);
        assert_eq!(group_limit("0\n"), Some(0));
        assert_eq!(group_limit("4294967296\n"), Some(4 << 30));
        assert_eq!(group_limit("9223372036854771712\n"), None);
        assert_eq!(group_limit(""), None);
    }

    #[test]
    fn small_limits_and_odd_texts_are_taken_as_they_are() {
        assert_eq!(group_limit("4096"), Some(4096));
        assert_eq!(group_limit(" 1048576 \n"), Some(1 << 20));
        // The largest number that still is a limit, and the smallest that no longer is.
        assert_eq!(group_limit("4611686018427387903"), Some((1 << 62) - 1));
        assert_eq!(group_limit("4611686018427387904"), None);
        // A page below 2^63, as version 1 has it with pages of 64 KiB, and more than 64 bits.
        assert_eq!(group_limit("9223372036854710272\n"), None);
        assert_eq!(group_limit("18446744073709551616"), None);
        for text in ["-1", "Max", "4G", "0x10", "1 2"] {
            assert_eq!(group_limit(text), None, "{text}");
        }
    }

    #[test]
    fn a_group_without_a_limit_leaves_the_system_to_say() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        fs::write(dir.path().join("memory.current"), "400\n").unwrap();
        assert_eq!(group_available(dir.path()), None);
        assert_eq!(smallest(Some(1000), None), Some(1000));
        assert_eq!(smallest(None, None), None);
    }

    #[test]
    fn a_limit_of_zero_leaves_nothing_rather_than_everything() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.max"), "0\n").unwrap();
        assert_eq!(group_available(dir.path()), Some(0));
        assert_eq!(smallest(Some(1000), Some(0)), Some(0));
    }

    #[test]
    fn idle_pages_of_files_count_as_available() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        write(
            "memory.stat",
            "anon 100\nactive_file 200\ninactive_file 600\n",
        );
        assert_eq!(group_available(dir.path()), Some(700));
        // The two are not read at one moment: never more than the limit.
        write("memory.current", "500\n");
        assert_eq!(group_available(dir.path()), Some(1000));
        fs::remove_file(dir.path().join("memory.max")).unwrap();
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "900\n");
        write("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
        assert_eq!(group_available(dir.path()), Some(400));
    }

    #[test]
    fn version_1_has_files_of_other_names() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.limit_in_bytes"), "33554432\n").unwrap();
        fs::write(dir.path().join("memory.usage_in_bytes"), "1048576\n").unwrap();
        assert_eq!(group_available(dir.path()), Some(31 << 20));
        fs::write(
            dir.path().join("memory.limit_in_bytes"),
            "9223372036854771712\n",
        )
        .unwrap();
        assert_eq!(group_available(dir.path()), None);
    }

    #[test]
    fn both_versions_and_every_parent_are_looked_at() {
        let text = "5:cpu,memory:/a/b\n3:cpuset:/x\n0::/user.slice\n";
        assert_eq!(
            group_folders(text),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
        assert_eq!(group_folders("0::/\n"), ["/sys/fs/cgroup"]);
        assert_eq!(group_folders("nonsense"), [""; 0]);
    }

    #[test]
    fn a_group_in_use_has_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.max"), "1000\n").unwrap();
        assert_eq!(group_available(dir.path()), Some(1000));
        fs::write(dir.path().join("memory.current"), "400\n").unwrap();
        assert_eq!(group_available(dir.path()), Some(600));
        fs::write(dir.path().join("memory.current"), "4000\n").unwrap();
        assert_eq!(group_available(dir.path()), Some(0));
        assert_eq!(group_available(&dir.path().join("missing")), None);
    }
}
