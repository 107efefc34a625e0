//! Line plots as SVG text: panels one below the other, one legend beside them.
//!
//! Owns the look: sizes, colors, marks, ticks. Does not own figures, and writes no file. The only
//! file that names the plotting library. Invariants: 1. every finite point lies inside its panel;
//! 2. the legend has its own column, so it never covers a line; 3. the same figure gives the same
//! text. Cost: O(points).

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::prelude::{
    BLACK, Cartesian2d, ChartBuilder, Circle, Color, Cross, DashedLineSeries, IntoDrawingArea,
    IntoFont, LineSeries, PathElement, RGBColor, SVGBackend, ShapeStyle, Text, TriangleMarker,
    WHITE,
};
use plotters::style::{FontStyle, TextStyle};

use crate::{Error, Result};

/// A picture of one or more panels that share a legend.
///
/// ```
/// use thalweg_eval::plot::{Figure, Panel, Series};
/// let mut panel = Panel::new("slots a layer", "hit rate (%)");
/// panel.series.push(Series::new("lru", vec![(8.0, 61.0), (16.0, 79.5), (24.0, 88.1)]));
/// let mut figure = Figure::new("Hit rate against slots");
/// figure.panels.push(panel);
/// assert!(figure.to_svg()?.starts_with("<svg"));
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Figure {
    /// What it shows, above everything.
    pub title: String,
    /// A line below the title: where the figures come from. May be empty.
    pub subtitle: String,
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Panel {
    /// Name and unit of the horizontal axis.
    pub x_label: String,
    /// Name and unit of the vertical axis.
    pub y_label: String,
    /// Whether the vertical axis begins at zero. Default false.
    pub from_zero: bool,
    /// The lines. Series of the same name look alike in all panels.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, ascending in x. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// Whether it is a bound rather than a result: black and dashed. Default false.
    pub is_bound: bool,
}

impl Figure {
    /// A figure without panels.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// The figure as an SVG document of 960 pixels width and 420 pixels a panel.
    ///
    /// # Errors
    /// [`Error::EmptyPlot`] for a panel without a finite point, or no panel at all;
    /// [`Error::Plot`] when the library fails.
    pub fn to_svg(&self) -> Result<String> {
        let names = self.names();
        if self.panels.is_empty() || self.panels.iter().any(|p| p.points().next().is_none()) {
            let title = self.title.clone();
            return Err(Error::EmptyPlot { title });
        }
        let mut svg = String::new();
        self.draw(&names, &mut svg).map_err(|e| Error::Plot {
            title: self.title.clone(),
            source: Box::new(e),
        })?;
        Ok(svg)
    }

    /// The names of all series, each once, in the order of their first occurrence; bounds last.
    fn names(&self) -> Vec<(&str, bool)> {
        let mut names: Vec<(&str, bool)> = Vec::new();
        for series in self.panels.iter().flat_map(|p| &p.series) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((&series.name, series.is_bound));
            }
        }
        names.sort_by_key(|(_, is_bound)| *is_bound);
        names
    }

    fn draw(&self, names: &[(&str, bool)], svg: &mut String) -> Drawn {
        // At most a few panels: a page is a u32.
        let height = HEAD_PX + PANEL_PX * self.panels.len() as u32;
        let page = SVGBackend::with_string(svg, (WIDTH_PX, height)).into_drawing_area();
        page.fill(&WHITE)?;
        page.draw(&Text::new(self.title.as_str(), (16, 12), font(20)))?;
        page.draw(&Text::new(self.subtitle.as_str(), (16, 38), gray(13)))?;
        let (_, body) = page.split_vertically(HEAD_PX);
        let (charts, legend) = body.split_horizontally(WIDTH_PX - LEGEND_PX);
        for (panel, area) in self
            .panels
            .iter()
            .zip(charts.split_evenly((self.panels.len(), 1)))
        {
            panel.draw(names, &area)?;
        }
        for (index, (name, is_bound)) in names.iter().enumerate() {
            let y = 28 + 24 * index as i32;
            let style = Look::of(names, name);
            let line = vec![(8, y), (36, y)];
            if *is_bound {
                for (from, to) in [(8, 14), (19, 25), (30, 36)] {
                    legend.draw(&PathElement::new(vec![(from, y), (to, y)], style.line()))?;
                }
            } else {
                legend.draw(&PathElement::new(line, style.line()))?;
                style.mark(&legend, (22, y))?;
            }
            legend.draw(&Text::new((*name).to_owned(), (44, y - 8), font(14)))?;
        }
        page.present()
    }
}

impl Panel {
    /// Axes without lines.
    #[must_use]
    pub fn new(x_label: impl Into<String>, y_label: impl Into<String>) -> Self {
        Self {
            x_label: x_label.into(),
            y_label: y_label.into(),
            ..Self::default()
        }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let points = self.series.iter().flat_map(|s| s.points.iter().copied());
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn draw(&self, names: &[(&str, bool)], area: &Area<'_>) -> Drawn {
        let (x, y) = (
            Range::of(self.points().map(|p| p.0), false),
            Range::of(self.points().map(|p| p.1), self.from_zero),
        );
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(x.least..x.greatest, y.least..y.greatest)?;
        chart
            .configure_mesh()
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .axis_desc_style(font(14))
            .label_style(font(13))
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(224, 224, 224))
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(&|v| label(*v, x.span()))
            .y_label_formatter(&|v| label(*v, y.span()))
            .draw()?;
        for series in &self.series {
            series.draw(&Look::of(names, &series.name), &mut chart)?;
        }
        Ok(())
    }
}

impl Series {
    /// A line of results.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            is_bound: false,
        }
    }

    /// A bound: what could be reached at best.
    #[must_use]
    pub fn bound(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            is_bound: true,
            ..Self::new(name, points)
        }
    }

    fn draw(&self, look: &Look, chart: &mut Chart<'_, '_>) -> Drawn {
        let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
        let points: Vec<(f64, f64)> = self.points.iter().filter(finite).copied().collect();
        if self.is_bound {
            chart.draw_series(DashedLineSeries::new(points, 6, 5, look.line()))?;
            return Ok(());
        }
        let area = chart.plotting_area().strip_coord_spec();
        let place = |p: &(f64, f64)| {
            let (x, y) = chart.backend_coord(p);
            let (x0, y0) = area.get_base_pixel();
            (x - x0, y - y0)
        };
        for point in &points {
            look.mark(&area, place(point))?;
        }
        chart.draw_series(LineSeries::new(points, look.line()))?;
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

const WIDTH_PX: u32 = 960;
const HEAD_PX: u32 = 60;
const PANEL_PX: u32 = 420;
const LEGEND_PX: u32 = 210;

/// Colors that stay apart for most kinds of color blindness (Okabe and Ito, 2008), without black.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
];

/// Color and mark of a series.
struct Look {
    color: RGBColor,
    /// Which mark: the color's round decides, so that no two of 21 series look alike.
    mark: usize,
}

impl Look {
    fn of(names: &[(&str, bool)], name: &str) -> Self {
        let index = names.iter().position(|(n, _)| *n == name).unwrap_or(0);
        match names.get(index) {
            Some((_, true)) => Self {
                color: BLACK,
                mark: 0,
            },
            _ => Self {
                color: COLORS[index % COLORS.len()],
                mark: (index + index / COLORS.len()) % 3,
            },
        }
    }

    fn line(&self) -> ShapeStyle {
        self.color.stroke_width(2)
    }

    fn mark(&self, area: &Area<'_>, at: (i32, i32)) -> Drawn {
        match self.mark {
            0 => area.draw(&Circle::new(at, 4, self.color.filled())),
            1 => area.draw(&TriangleMarker::new(at, 5, self.color.filled())),
            _ => area.draw(&Cross::new(at, 4, self.line())),
        }
    }
}

/// The range of an axis.
#[derive(Clone, Copy)]
struct Range {
    least: f64,
    greatest: f64,
}

impl Range {
    /// All values with a margin of 4 % of their span, or of their size if they are all equal.
    fn of(values: impl Iterator<Item = f64>, from_zero: bool) -> Self {
        let first = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut least, greatest) = values.fold(first, |(l, g), v| (l.min(v), g.max(v)));
        if from_zero {
            least = least.min(0.0);
        }
        let span = greatest - least;
        let margin = match span > 0.0 {
            true => 0.04 * span,
            false => (0.04 * least.abs()).max(0.5),
        };
        Self {
            // Nothing below zero is suggested where nothing is.
            least: match least >= 0.0 {
                true => (least - margin).max(0.0),
                false => least - margin,
            },
            greatest: greatest + margin,
        }
    }

    fn span(self) -> f64 {
        self.greatest - self.least
    }
}

/// A tick's label: as many decimals as the span needs.
fn label(value: f64, span: f64) -> String {
    // Eight ticks; one digit more than their distance has.
    let decimals = (1.0 - (span / 8.0).log10()).ceil().clamp(0.0, 6.0);
    // Between 0 and 6.
    let text = format!("{value:.0$}", decimals as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size, FontStyle::Normal)
        .into_font()
        .color(&BLACK)
}

fn gray(size: i32) -> TextStyle<'static> {
    let color = RGBColor(96, 96, 96);
    ("sans-serif", size, FontStyle::Normal)
        .into_font()
        .color(&color)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: Vec<(f64, f64)>) -> Figure {
        let mut panel = Panel::new("slots", "hit rate (%)");
        panel.series.push(Series::new("lru", points.clone()));
        panel.series.push(Series::bound("belady_min", points));
        let mut figure = Figure::new("A < B & \"C\"");
        figure.panels = vec![panel.clone(), panel];
        figure
    }

    #[test]
    fn a_figure_names_everything_once_and_escapes_its_text() {
        let svg = figure(vec![(8.0, 1.0), (16.0, 2.0)])
            .to_svg()
            .expect("drawn");
        assert_eq!(svg.matches("hit rate (%)").count(), 2, "one a panel");
        assert_eq!(svg.matches("\nbelady_min\n").count(), 1, "one legend");
        assert!(svg.contains("A &lt; B &amp;"), "{}", &svg[..600]);
        assert!(svg.trim_end().ends_with("</svg>"));
        let again = figure(vec![(8.0, 1.0), (16.0, 2.0)]).to_svg();
        assert_eq!(again.expect("drawn"), svg);
    }

    #[test]
    fn hostile_points_are_left_out_and_nothing_at_all_is_refused() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let points = odd.iter().map(|&v| (v, 1.0)).chain([(1.0, f64::NAN)]);
        let mut points: Vec<_> = points.collect();
        assert!(figure(points.clone()).to_svg().is_err());
        assert!(Figure::new("empty").to_svg().is_err());
        points.push((3.0, 4.0)); // one point: a range of its own
        figure(points).to_svg().expect("drawn");
        for huge in [1e300, 1e-300, -5.0] {
            figure(vec![(huge, huge), (2.0 * huge, 3.0 * huge)])
                .to_svg()
                .expect("drawn");
        }
    }

    #[test]
    fn ticks_have_the_decimals_that_tell_them_apart() {
        assert_eq!(label(16.0, 48.0), "16");
        assert_eq!(label(0.05, 0.2), "0.05");
        assert_eq!(label(0.0125, 0.02), "0.0125");
        assert_eq!(label(100.0, 700.0), "100");
        assert_eq!(label(2.5, 4.0), "2.5");
    }

    #[test]
    fn points_lie_inside_their_range_and_zero_is_kept() {
        for (values, from_zero) in [
            (vec![3.0, 9.0], false),
            (vec![3.0, 9.0], true),
            (vec![0.0, 0.0], false),
            (vec![-2.0, 5.0], true),
        ] {
            let range = Range::of(values.iter().copied(), from_zero);
            assert!(
                values
                    .iter()
                    .all(|v| (range.least..=range.greatest).contains(v))
            );
            assert!(range.span() > 0.0);
            assert!(!from_zero || range.least <= 0.0);
        }
    }
}
