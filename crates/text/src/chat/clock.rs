//! The clock that templates see, as Python's `strftime` writes it.
//!
//! Owns: dates and their formats. Does not own: the time; a render fixes it once.
//! Cost: linear in the format; a date takes at most 400 steps.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// `datetime.now().strftime(format)` for the C locale and UTC. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    const DAYS: [&str; 7] = [
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
    ];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    let Date {
        year,
        month,
        day,
        day_of_year,
    } = date(days);
    let day_name = DAYS[usize::try_from((days + 4) % 7).unwrap_or(0)];
    let month_name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let hour_12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };

    let mut out = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // `%-d` is `%d` without padding.
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let mut number = |value: u64, width: usize| {
            let width = if padded { width } else { 0 };
            let _infallible = write!(out, "{value:0width$}");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('f') => number(0, 6),
            Some('u') => number((days + 3) % 7 + 1, 1),
            Some('w') => number((days + 4) % 7, 1),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('p') => out.push_str(half),
            Some('F') => {
                let _infallible = write!(out, "{year:04}-{month:02}-{day:02}");
            }
            Some('T') => {
                let _infallible = write!(out, "{hour:02}:{minute:02}:{second:02}");
            }
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
    day_of_year: u64,
}

/// The Gregorian date of a day counted from 1970-01-01.
fn date(days: u64) -> Date {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // 400 years have 146,097 days; what is left takes at most 400 steps.
    let (mut year, mut rest) = (1970 + days / 146_097 * 400, days % 146_097);
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = rest + 1;
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    Date {
        year,
        month,
        day: rest + 1,
        day_of_year,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_gregorian() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%A %a %d %-d %B %b %Y %y %m %H:%M:%S %I %p %j %F %T %%";
        // The expected lines are those of Python's datetime.
        for (seconds, expected) in [
            (
                0,
                "Thursday Thu 01 1 January Jan 1970 70 01 00:00:00 12 AM 001 1970-01-01 00:00:00 %",
            ),
            (
                951_827_696,
                "Tuesday Tue 29 29 February Feb 2000 00 02 12:34:56 12 PM 060 2000-02-29 \
                 12:34:56 %",
            ),
            (
                4_102_444_799,
                "Thursday Thu 31 31 December Dec 2099 99 12 23:59:59 11 PM 365 2099-12-31 \
                 23:59:59 %",
            ),
        ] {
            assert_eq!(strftime(all, at(seconds)), expected);
        }
        assert_eq!(strftime("%Q %", at(0)), "%Q %");
    }
}
