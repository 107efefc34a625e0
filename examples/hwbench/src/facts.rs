//! What the figures belong to: processor, memory, system, date. Facts that the system does not tell
//! are left out.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn collect() -> BTreeMap<String, String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().ok();
    let release = read("/proc/sys/kernel/osrelease");
    let os = format!("{} {}", std::env::consts::OS, release.trim());
    let facts = [
        ("cpu", field(&read("/proc/cpuinfo"), "model name")),
        ("arch", Some(std::env::consts::ARCH.to_owned())),
        ("cores", cores.map(|n| n.to_string())),
        ("memory_bytes", memory(&read("/proc/meminfo"))),
        ("os", Some(os.trim().to_owned())),
        ("date", date(SystemTime::now())),
    ];
    facts
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// The first value of `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// `MemTotal`, which the system gives in KiB and calls kB.
fn memory(meminfo: &str) -> Option<String> {
    let value = field(meminfo, "MemTotal")?;
    let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.checked_mul(1024)?.to_string())
}

/// The day in UTC as year-month-day.
fn date(now: SystemTime) -> Option<String> {
    let seconds = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    // Counted from 1 March of year 0, so that a leap day ends its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 153 days in each five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) = match month_from_march {
        m @ 0..=9 => (m + 3, 0),
        m => (m - 9, 1),
    };
    let year = 400 * era + year_of_era + next_year;
    Some(format!("{year:04}-{month:02}-{day:02}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_named_as_in_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_251_199, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(date(at).as_deref(), Some(expected));
        }
    }

    #[test]
    fn facts_come_from_the_system_s_tables() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A: B 7\nprocessor\t: 1\nmodel name\t: C\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("A: B 7"));
        assert_eq!(field(cpuinfo, "Model"), None);
        assert_eq!(
            memory("MemTotal:  24 kB\nMemFree: 1 kB\n").as_deref(),
            Some("24576")
        );
        assert_eq!(memory("MemTotal: much\n"), None);
        assert_eq!(memory(""), None);
    }
}
