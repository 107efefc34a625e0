use super::*;

/// Windows of a worked example: means, scored tokens.
const A: [Sum; 3] = [(0.30 * 10.0, 10), (0.10 * 20.0, 20), (0.20 * 10.0, 10)];
const B: [Sum; 3] = [(0.20 * 10.0, 10), (0.12 * 20.0, 20), (0.15 * 10.0, 10)];

fn near(found: f64, expected: f64, by: f64) {
    assert!((found - expected).abs() <= by, "{found} for {expected}");
}

#[test]
fn a_relative_change_is_that_of_the_pooled_means() {
    let all = [0, 1, 2];
    near(pooled_mean(&A, &all), 0.175, 1e-15);
    near(pooled_mean(&B, &all), 0.1475, 1e-15);
    near(relative_change(&A, &B, &all), -0.157_142_857, 1e-9);
}

#[test]
fn resampling_approaches_the_list_of_all_resamples() {
    let mut all = Vec::new();
    for i in 0..27 {
        all.push(relative_change(&A, &B, &[i / 9, i / 3 % 3, i % 3]));
    }
    all.sort_by(f64::total_cmp);
    near(all[0], -1.0 / 3.0, 1e-12);
    near(percentile(&all, 0.5), -0.157_142_857, 1e-9);
    near(all[26], 0.2, 1e-12);

    // Each of the 27 comes as often as any other: shares below a value agree.
    let mut drawn = Vec::new();
    let mut change = |indices: &[usize]| {
        drawn.push(relative_change(&A, &B, indices));
        [drawn[drawn.len() - 1]]
    };
    let bootstrap = Bootstrap::default();
    let [found] = bootstrap.intervals(&[3], &mut change).unwrap().unwrap();
    // The extremes have probability 1/27 each, more than either tail of 95 %.
    near(found.low, -1.0 / 3.0, 1e-12);
    near(found.high, 0.2, 1e-12);
    for &value in &all {
        let share = |of: &[f64]| {
            let below = of.iter().filter(|v| **v <= value + 1e-12).count();
            below as f64 / of.len() as f64
        };
        near(share(&drawn), share(&all), 0.02);
    }
}

#[test]
fn the_interval_of_a_mean_is_the_normal_one_for_many_units() {
    let units: Vec<f64> = (0..400).map(|i| f64::from(i * 37 % 101)).collect();
    let (mean, error) = mean_and_error(&units).unwrap();
    let statistic = |drawn: &[usize]| {
        let sum: f64 = drawn.iter().map(|&i| units[i]).sum();
        [sum / drawn.len() as f64, sum]
    };
    let bootstrap = Bootstrap {
        n_resamples: 4000,
        ..Bootstrap::default()
    };
    let [of_mean, of_sum] = bootstrap.intervals(&[400], statistic).unwrap().unwrap();
    near(of_mean.low, mean - 1.96 * error, 0.15 * error);
    near(of_mean.high, mean + 1.96 * error, 0.15 * error);
    near(of_sum.low, 400.0 * of_mean.low, 1e-6);
    // The seed alone decides.
    let again = bootstrap.intervals(&[400], statistic).unwrap().unwrap();
    assert_eq!(again, [of_mean, of_sum]);
    let other = Bootstrap {
        seed: 2,
        ..bootstrap
    };
    assert_ne!(other.intervals(&[400], statistic).unwrap().unwrap(), again);
}

#[test]
fn each_stratum_is_drawn_from_by_itself() {
    let mut calls = 0;
    let bootstrap = Bootstrap {
        n_resamples: 50,
        ..Bootstrap::default()
    };
    let found = bootstrap.intervals(&[3, 2, 4], |drawn| {
        calls += 1;
        assert!(drawn[..3].iter().all(|i| (0..3).contains(i)), "{drawn:?}");
        assert!(drawn[3..5].iter().all(|i| (3..5).contains(i)), "{drawn:?}");
        assert!(drawn[5..].iter().all(|i| (5..9).contains(i)), "{drawn:?}");
        [0.0]
    });
    assert_eq!(found.unwrap().unwrap(), [Interval::new(0.0, 0.0)]);
    assert_eq!(calls, 50);
}

#[test]
fn a_single_unit_has_no_interval_and_bad_settings_are_refused() {
    let constant = |_: &[usize]| [1.0];
    let bootstrap = Bootstrap::default();
    assert_eq!(bootstrap.intervals(&[1], constant).unwrap(), None);
    assert_eq!(bootstrap.intervals(&[5, 1], constant).unwrap(), None);
    assert_eq!(bootstrap.intervals(&[], constant).unwrap(), None);
    let message = |bootstrap: Bootstrap, value: f64| {
        let found = bootstrap.intervals(&[2], |_| [value]);
        found.unwrap_err().to_string()
    };
    let none = Bootstrap {
        n_resamples: 0,
        ..bootstrap
    };
    assert!(message(none, 1.0).contains("n_resamples is 0"));
    for level in [0.0, 1.0, f64::NAN] {
        let bad = Bootstrap { level, ..bootstrap };
        assert!(message(bad, 1.0).contains("level"));
    }
    for value in [f64::NAN, f64::INFINITY] {
        assert!(message(bootstrap, value).contains("expected finite"));
    }
}

#[test]
fn z_is_first_minus_second_over_its_error() {
    let paired = paired_z(&[-0.10, 0.02, -0.05, -0.03]).unwrap();
    near(paired.difference, -0.04, 1e-15);
    near(paired.standard_error * 2.0, 0.049_666, 5e-7);
    near(paired.z, -1.610_775, 5e-7);
    let unpaired = unpaired_z((0.600, 0.02), (0.627, 0.03)).unwrap();
    near(unpaired.z, -0.748_845, 5e-7);
    // Tables of the normal distribution.
    near(
        unpaired_z((1.96, 1.0), (0.0, 0.0)).unwrap().p_two_sided,
        0.049_995_79,
        1e-8,
    );
    for none in [
        paired_z(&[1.0]),
        paired_z(&[2.0, 2.0]),
        unpaired_z((1.0, 0.0), (2.0, 0.0)),
        unpaired_z((f64::NAN, 1.0), (2.0, 0.0)),
    ] {
        assert_eq!(none, None);
    }
}

#[test]
fn few_differences_say_less() {
    // Quantiles of Student's distribution: 0.975, and 0.995 for the last two.
    for (t, degrees, p) in [
        (12.706_205, 1, 0.05),
        (4.302_653, 2, 0.05),
        (3.182_446, 3, 0.05),
        (2.776_445, 4, 0.05),
        (2.228_139, 10, 0.05),
        (2.131_450, 15, 0.05),
        (1.984_217, 99, 0.05),
        (9.924_843, 2, 0.01),
        (2.946_713, 15, 0.01),
    ] {
        near(student_two_sided(t, degrees), p, 1e-7);
        near(student_two_sided(-t, degrees), p, 1e-7);
    }
    near(student_two_sided(1.962_339, 1000), 0.05, 4e-4);
    near(student_two_sided(0.0, 7), 1.0, 1e-15);
    let test = paired_z(&[-0.10, 0.02, -0.05, -0.03]).unwrap();
    assert_eq!(test.degrees_of_freedom, Some(3));
    assert!(test.p_two_sided > 0.2 && test.p_two_sided < 0.21);
}

#[test]
fn groups_weigh_alike_and_lend_each_other_degrees() {
    // Equal errors and sizes: the degrees add up.
    let groups = [vec![1.0, 3.0, 5.0], vec![-1.0, 1.0, 3.0]];
    let test = macro_paired_z(&groups).unwrap();
    near(test.difference, 2.0, 1e-15);
    near(
        test.standard_error,
        (2.0f64 * 4.0 / 3.0).sqrt() / 2.0,
        1e-15,
    );
    assert_eq!(test.degrees_of_freedom, Some(4));
    // A group that does not vary lends none.
    let test = macro_paired_z(&[vec![1.0, 3.0, 5.0], vec![2.0; 50]]).unwrap();
    assert_eq!(test.degrees_of_freedom, Some(2));
    assert_eq!(macro_paired_z(&[vec![1.0, 2.0], vec![1.0]]), None);
    assert_eq!(macro_paired_z(&[vec![1.0, 1.0]]), None);
    assert_eq!(macro_paired_z(&[]), None);
}

#[test]
fn errors_of_means_combine() {
    near(macro_error(&[0.3, 0.4]).unwrap(), 0.25, 1e-15);
    assert_eq!(macro_error(&[]), None);
    // Units of one size: the error of the mean of their means.
    let units = [(3.0, 10), (1.0, 10), (2.0, 10), (4.0, 10)];
    let (_, error) = mean_and_error(&[0.3, 0.1, 0.2, 0.4]).unwrap();
    near(pooled_error(&units).unwrap(), error, 1e-15);
    // Units that differ in size alone do not vary.
    near(pooled_error(&[(3.0, 30), (1.0, 10)]).unwrap(), 0.0, 1e-15);
    assert_eq!(pooled_error(&units[..1]), None);
}

#[test]
fn fisher_agrees_with_the_published_tables() {
    for (first, two_sided, less) in [
        (19, 1.0, 0.5),
        (18, 0.487_179, 0.243_590),
        (17, 0.230_769, 0.115_385),
    ] {
        let test = fisher_exact((first, 20), (20, 20)).unwrap();
        near(test.p_two_sided, two_sided, 5e-7);
        near(test.p_less, less, 5e-7);
        let turned = fisher_exact((20, 20), (first, 20)).unwrap();
        near(turned.p_two_sided, two_sided, 5e-7);
        near(turned.p_greater, less, 5e-7);
    }
    // The lady tasting tea (Fisher 1935): 17/70 one-sided, 34/70 two-sided.
    let tea = fisher_exact((3, 4), (1, 4)).unwrap();
    near(tea.p_greater, 17.0 / 70.0, 1e-12);
    near(tea.p_two_sided, 34.0 / 70.0, 1e-12);
}

#[test]
fn fisher_takes_margins_of_any_kind() {
    let all = fisher_exact((0, 0), (0, 0)).unwrap();
    near(all.p_two_sided, 1.0, 0.0);
    near(
        fisher_exact((0, 5), (0, 9)).unwrap().p_two_sided,
        1.0,
        1e-15,
    );
    let far = fisher_exact((0, 40_000), (40_000, 40_000)).unwrap();
    assert!(far.p_two_sided < 1e-300, "{far:?}");
    let said = fisher_exact((3, 3), (5, 4)).unwrap_err().to_string();
    assert!(said.contains("successes of entry 1 is 5"), "{said}");
}

#[test]
fn erfc_has_its_tabulated_values() {
    // Abramowitz and Stegun, table 7.1, and the asymptotic series for the last two.
    for (x, expected) in [
        (0.0, 1.0),
        (0.5, 0.479_500_122_186_953_5),
        (1.0, 0.157_299_207_050_285_13),
        (2.0, 0.004_677_734_981_047_266),
        (3.0, 2.209_049_699_858_544e-5),
        (5.0, 1.537_459_794_428_035e-12),
        (-1.0, 1.842_700_792_949_715),
    ] {
        near(erfc(x) / expected, 1.0, 1e-13);
    }
    assert!(erfc(f64::NAN).is_nan());
    assert!(erfc(40.0) >= 0.0);
    assert!(erfc(f64::NEG_INFINITY) > 1.999);
}
