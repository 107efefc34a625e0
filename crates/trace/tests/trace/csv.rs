//! The text form.

use thalweg_trace::{CSV_HEADER, Error, Logits, Trace, export_csv, f16_from_f32, import_csv};

use super::*;

#[test]
fn csv_carries_choices_and_weights_there_and_back() {
    let shape = tiny_shape().with_weights();
    let trace = Trace::parse(TINY_F16).expect("valid");
    let mut text = Vec::new();
    export_csv(&trace, &mut text).expect("in memory");
    let lines: Vec<&str> = std::str::from_utf8(&text).expect("ASCII").lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 2 * 2);
    assert_eq!(lines[0], CSV_HEADER);
    assert!(lines[1].starts_with("0,0,0,") && lines[1].ends_with(",0.75"));
    let mut records = Vec::new();
    let n = import_csv(&text[..], &shape, |record| {
        records.push(record.bytes()?.to_vec());
        Ok(())
    });
    assert_eq!(n.expect("valid"), 3);
    for (record, token) in records.iter().zip(trace.tokens()) {
        // Without logits a layer is experts and weights.
        let plain: Vec<u8> = token
            .layers()
            .flat_map(|l| {
                let weights = l.weights().map(f16_from_f32);
                l.experts().chain(weights).collect::<Vec<u16>>()
            })
            .flat_map(u16::to_le_bytes)
            .collect();
        assert_eq!(record[4..], plain);
    }
    // Without weights the last column is empty.
    let mut text = Vec::new();
    export_csv(&Trace::parse(TINY_NONE).expect("valid"), &mut text).expect("in memory");
    let text = String::from_utf8(text).expect("ASCII");
    assert!(text.lines().skip(1).all(|line| line.ends_with(',')));
    let n = import_csv(text.as_bytes(), &tiny_shape(), |_| Ok(()));
    assert_eq!(n.expect("valid"), 3);
}

#[test]
fn csv_that_is_not_the_next_pick_is_refused_with_its_line() {
    let shape = Shape::new(1, 8, 2).with_weights();
    let import = |text: &str| import_csv(text.as_bytes(), &shape, |_| Ok(()));
    let with = |rest: &str| format!("{CSV_HEADER}\n{rest}");
    assert_eq!(
        import(&with("0,0,0,3,0.5\r\n0,0,1,4,0.5\r\n")).expect("valid"),
        1
    );
    assert_eq!(import(&with("")).expect("valid"), 0);
    for (rest, line) in [
        ("0,0,1,3,0.5\n", 2),
        ("1,0,0,3,0.5\n", 2),
        ("0,1,0,3,0.5\n", 2),
        ("0,0,0,3\n", 2),
        ("0,0,0,3,0.5,1\n", 2),
        ("0,0,0,x,0.5\n", 2),
        ("0,0,0,3,\n", 2),
        ("0,0,0,-1,0.5\n", 2),
        ("0,0,0,3,0.5\n", 3),
        ("0,0,0,3,0.5\n\n", 3),
    ] {
        let error = import(&with(rest)).expect_err("refused");
        assert!(
            matches!(error, Error::BadLine { line: l, .. } if l == line),
            "{rest}: {error}"
        );
    }
    let error = import(&with(
        "0,0,0,3,0.5\n0,0,1,4,0.5\n1,0,0,5,0.5\n1,0,1,5,0.5\n",
    ));
    assert!(matches!(
        error,
        Err(Error::DuplicateExpert { token: 1, .. })
    ));
    let error = import(&with("0,0,0,3,0.5\n0,0,1,8,0.5\n"));
    assert!(matches!(
        error,
        Err(Error::ExpertOutOfRange {
            token: 0,
            found: 8,
            ..
        })
    ));
    let error = import(&with("0,0,0,3,0.5\n0,0,1,4,nan\n"));
    assert!(matches!(error, Err(Error::BadValue { token: 0, .. })));
    assert!(matches!(
        import("token,layer\n"),
        Err(Error::BadLine { line: 1, .. })
    ));
    assert!(matches!(import(""), Err(Error::BadLine { line: 1, .. })));
    let endless = "9".repeat(1 << 20);
    let error = import(&with(&endless)).expect_err("refused");
    assert!(
        error.to_string().starts_with("line 2: bad line length"),
        "{error}"
    );
    let logits = shape.with_logits(Logits::FullF16);
    let refused = import_csv(&b""[..], &logits, |_| Ok(()));
    assert!(matches!(refused, Err(Error::NoLogits)));
}
