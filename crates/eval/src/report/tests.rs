use super::*;
use crate::metrics::TokenScore;

/// Three windows in two domains with these mean divergences.
fn report(klds: [f64; 3]) -> Report {
    let mut set = WindowSet::new();
    for (domain, n) in [("en", 10), ("ja, \"x\"", 20), ("en", 10)] {
        set.add_window(domain, (0..=n).collect(), 1..n as usize + 1)
            .unwrap();
    }
    let sums = set.windows().iter().zip(klds).map(|(window, kld)| {
        let mut sums = WindowSums::new(window.domain());
        for position in window.scored() {
            let score = TokenScore {
                kld,
                reference_nll: 1.0,
                test_nll: 1.0 + kld,
                same_top1: position % 2 == 0,
            };
            sums.push(position, score).unwrap();
        }
        sums
    });
    let facts = |file: &str, bytes| ModelFacts {
        file: file.to_owned(),
        sha256: "ab".to_owned(),
        bytes,
        expert_bytes: bytes / 2,
        n_expert: 64,
        n_expert_used: 6,
        activations: "f32".to_owned(),
        moce: "off".to_owned(),
    };
    let models = [
        facts("models/big.gguf", 4_000_000),
        facts("small.gguf", 1_000_000),
    ];
    let cut = Some(Cut::default());
    Report::new(models, &set, cut, sums.collect(), &Bootstrap::default()).unwrap()
}

#[test]
fn json_carries_everything_back() {
    let mut found = report([0.3, 0.1, 0.2]);
    found.seconds = 1.5;
    found.texts.push(TextFacts {
        file: "en.txt".to_owned(),
        domain: "en".to_owned(),
        n_tokens: 22,
    });
    let text = found.to_json().unwrap();
    assert_eq!(text.lines().count(), 1);
    assert_eq!(Report::from_json(&text).unwrap(), found);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (place, expected) in [("macro", 0.175), ("pooled", 0.175)] {
        let kld = value[place]["kld"].as_f64().unwrap();
        assert!((kld - expected).abs() < 1e-12, "{place}: {kld}");
    }
    assert_eq!(value["domains"][1]["kld_interval"], serde_json::Value::Null);
    let note = |i: usize| value["notes"][i].as_str().unwrap();
    assert!(note(0).contains("2 windows") && note(1).contains("single window"));
}

#[test]
fn what_is_no_report_is_refused() {
    let text = report([0.3, 0.1, 0.2]).to_json().unwrap();
    let message = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let error = Report::from_json(&text.replacen(from, to, 1)).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", cause.unwrap_or_default())
    };
    assert!(message(REPORT_FORMAT, "x").contains("\"x\""));
    assert!(message("\"version\":1", "\"version\":2").contains("is 2"));
    assert!(
        message("\"windows\":[{\"domain\":0", "\"windows\":[{\"domain\":7").contains("domain 7")
    );
    let counted = "\"windows\":[{\"domain\":0,\"n_tokens\":";
    assert!(message(&format!("{counted}10"), &format!("{counted}11")).contains("scored tokens"));
    assert!(message("\"kld\":", "\"kdl\":").contains("kld"));
    assert!(message("\"kld\":", "\"kld\":1e999,\"kdl\":").contains("number out of range"));
}

#[test]
fn a_change_is_the_published_example() {
    // Windows of 10, 20 and 10 tokens in one domain: 0.175 becomes 0.1475.
    let one_domain = |klds| {
        let mut found = report(klds);
        let sums: Vec<_> = found
            .windows
            .drain(..)
            .map(|w| WindowSums { domain: 0, ..w })
            .collect();
        found.summary = Summary::of(&["all".to_owned()], &sums, &Bootstrap::default()).unwrap();
        found.windows = sums;
        found
    };
    let (before, after) = (
        one_domain([0.30, 0.10, 0.20]),
        one_domain([0.20, 0.12, 0.15]),
    );
    let change = after.change_from(&before, &Bootstrap::default()).unwrap();
    for scope in [change.pooled, change.macro_mean, change.domains[0].change] {
        assert!((scope.before - 0.175).abs() < 1e-12);
        assert!((scope.after - 0.1475).abs() < 1e-12);
        assert!((scope.relative.unwrap() + 0.157_142_857).abs() < 1e-9);
        let interval = scope.interval.unwrap();
        assert!((interval.low + 1.0 / 3.0).abs() < 1e-12 && (interval.high - 0.2).abs() < 1e-12);
        // Differences -0.1, 0.02, -0.05: mean -0.043333, error 0.034801.
        assert!((scope.z.unwrap().z + 1.245_168).abs() < 1e-5, "{scope:?}");
    }
    assert_eq!((change.n_better, change.n_worse), (2, 1));
}

#[test]
fn domains_are_compared_by_themselves() {
    let (before, after) = (report([0.3, 0.1, 0.2]), report([0.3, 0.05, 0.2]));
    let change = after.change_from(&before, &Bootstrap::default()).unwrap();
    let [en, ja] = &change.domains[..] else {
        panic!("two domains")
    };
    assert_eq!((en.change.relative, en.change.z), (Some(0.0), None));
    assert_eq!((ja.change.interval, ja.change.z), (None, None));
    assert!((ja.change.relative.unwrap() + 0.5).abs() < 1e-12);
    // 0.175 becomes 0.15.
    assert!((change.macro_mean.relative.unwrap() + 1.0 / 7.0).abs() < 1e-12);
    assert_eq!(change.macro_mean.interval, None);

    // Nothing diverged before: no relative change, and no infinite one either.
    let nothing = report([0.0; 3]);
    let change = after.change_from(&nothing, &Bootstrap::default()).unwrap();
    assert_eq!(
        (change.pooled.relative, change.pooled.interval),
        (None, None)
    );
    assert!(change.pooled.z.is_some());
    assert!(serde_json::to_string(&change).unwrap().contains("null"));
}

#[test]
fn other_windows_and_other_references_are_not_compared() {
    let found = report([0.3, 0.1, 0.2]);
    let message = |other: &Report| {
        let change = found.change_from(other, &Bootstrap::default());
        change.unwrap_err().to_string()
    };
    let mut other = found.clone();
    other.windows_sha256 = "0".to_owned();
    assert!(message(&other).contains("other windows"));
    let mut other = found.clone();
    other.reference.sha256 = "0".to_owned();
    assert!(message(&other).contains("another reference"));
    let mut other = found.clone();
    other.windows.pop();
    assert!(message(&other).contains("counts"));
}

#[test]
fn tables_have_a_line_for_each_scope() {
    let mut found = report([0.3, 0.1, 0.2]);
    let change = found.change_from(&report([0.2; 3]), &Bootstrap::default());
    found.changes.push(change.unwrap());
    assert_eq!(Report::from_json(&found.to_json().unwrap()).unwrap(), found);
    let page = found.to_markdown();
    for part in [
        "# small.gguf against big.gguf",
        "| macro ",
        "0.175000",
        "## Against small.gguf",
        "1 windows better, 1 worse",
        "note: domain \"ja",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // Columns line up.
    let table = found.table();
    let lengths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert_eq!(lengths.len(), 6);
    assert!(lengths.iter().all(|n| *n == lengths[0]), "{table}");

    let csv = found.to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(
        lines[2].starts_with("domain,\"ja, \"\"x\"\"\",1,20,0.1"),
        "{csv}"
    );
    assert!(lines[4].starts_with("macro,,3,40,0.175"), "{csv}");
    let n_columns = lines[0].split(',').count();
    assert!(
        lines[3..]
            .iter()
            .all(|line| line.split(',').count() == n_columns)
    );
    let windows = found.windows_csv();
    assert_eq!(windows.lines().count(), 4);
    let cells: Vec<&str> = windows.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(cells[..3], ["0", "en", "10"]);
    assert!((cells[3].parse::<f64>().unwrap() - 0.3).abs() < 1e-12);
}

#[test]
fn pictures_name_domains_and_sizes() {
    let (small, large) = (report([0.3, 0.1, 0.2]), report([0.0; 3]));
    let svg = small.windows_svg().unwrap();
    assert!(
        svg.contains("KLD (nats a token)") && svg.contains("\nen\n"),
        "{svg}"
    );
    let mut biased = large;
    biased.test.moce = "abs:0.85".to_owned();
    let svg = quality_svg(&[&small, &biased]).unwrap();
    assert!(
        svg.contains("experts (MB)") && svg.contains("\nsmall.gguf\n"),
        "{svg}"
    );
    assert!(svg.contains("\nsmall.gguf abs:0.85\n"), "{svg}");
    assert!(quality_svg(&[]).is_err());
}
