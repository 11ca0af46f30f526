//! Draws line charts and bar charts as SVG.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// A line of a line chart.
pub struct Series {
    /// The name of the line in the legend.
    pub name: String,
    /// The points of the line as (x, y), from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A line chart.
pub struct LineChart<'a> {
    /// The title above the chart.
    pub title: &'a str,
    /// The label of the x axis.
    pub x_label: &'a str,
    /// The label of the y axis.
    pub y_label: &'a str,
    /// Whether the x axis is logarithmic.
    pub is_log_x: bool,
    /// The lines of the chart. At least one of them must have a point.
    pub lines: &'a [Series],
}

/// A bar of a bar chart.
pub struct Bar {
    /// The name at the left of the bar.
    pub name: String,
    /// The length of the bar.
    pub value: f64,
    /// The label at the end of the bar.
    pub label: String,
}

type ChartSvgResult = Result<String, Box<dyn Error>>;

/// The colors of lines and bars: the palette of Okabe and Ito. These colors can be distinguished in print and by people
/// with color blindness.
const CHART_COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];

const CHART_SIZE_PX: (u32, u32) = (760, 380);

const FONT_FAMILY: &str = "sans-serif";

/// The font of chart titles: the family and the nominal size. The size in pixels is about four fifths of the nominal
/// size.
const TITLE_FONT: (&str, i32) = (FONT_FAMILY, 19);

const LABEL_FONT: (&str, i32) = (FONT_FAMILY, 16);

const SMALL_FONT: (&str, i32) = (FONT_FAMILY, 15);

/// The approximate width of a character of [`LABEL_FONT`], in pixels.
const CHAR_WIDTH_PX: i32 = 7;

impl LineChart<'_> {
    /// Draws the line chart as SVG.
    ///
    /// # Errors
    /// If no line has a point.
    pub fn draw(&self) -> ChartSvgResult {
        self.draw_lines(None)
    }

    /// Draws the line chart as SVG, with a dashed horizontal line at the y value `height`. The legend shows the dashed
    /// line as `name`.
    ///
    /// # Errors
    /// If no line has a point.
    pub fn draw_with_reference_line(&self, height: f64, name: &str) -> ChartSvgResult {
        self.draw_lines(Some((height, name)))
    }

    fn draw_lines(&self, reference_line: ReferenceLine) -> ChartSvgResult {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let reduce_x = |pick: fn(f64, f64) -> f64| points().map(|point| point.0).reduce(pick);
        let min_x = reduce_x(f64::min).ok_or("a chart without values")?;
        let max_x = reduce_x(f64::max).ok_or("a chart without values")?;
        let highest =
            points().map(|point| point.1).fold(reference_line.map_or(0.0, |line| line.0), f64::max);
        let y = 0.0..1.05 * highest.max(f64::MIN_POSITIVE);
        if self.is_log_x {
            self.draw_with_axes((min_x..max_x).log_scale(), y, reference_line)
        } else {
            self.draw_with_axes(min_x..max_x, y, reference_line)
        }
    }

    fn draw_with_axes<X>(
        &self,
        x: X,
        y: std::ops::Range<f64>,
        reference_line: ReferenceLine,
    ) -> ChartSvgResult
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, CHART_SIZE_PX).into_drawing_area();
            area.fill(&WHITE)?;
            let legend_bottom =
                draw_title_and_legend(&area, self.title, &self.legend_entries(reference_line))?;
            let (_, body) = area.split_vertically(legend_bottom);
            let mut chart = ChartBuilder::on(&body)
                .margin(12)
                .margin_right(24)
                .x_label_area_size(48)
                .y_label_area_size(68)
                .build_cartesian_2d(x, y)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(BLACK.mix(0.1))
                .x_desc(self.x_label)
                .y_desc(self.y_label)
                .axis_desc_style(SMALL_FONT)
                .label_style(SMALL_FONT)
                .x_label_formatter(&|x| format_axis_value(*x))
                .y_label_formatter(&|y| format_axis_value(*y))
                .draw()?;
            // Draws the lines in reverse order, so that the first line is on top.
            let colored: Vec<_> = self.lines.iter().zip(CHART_COLORS.iter().cycle()).collect();
            for (line, color) in colored.into_iter().rev() {
                let points = line.points.iter().copied();
                chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            }
            if let Some((height, _)) = reference_line {
                let ends = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
                let (min_x, max_x) = (ends.clone().reduce(f64::min), ends.reduce(f64::max));
                let ends = [min_x, max_x].into_iter().flatten().map(|x| (x, height));
                chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(1)))?;
            }
            area.present()?;
        }
        Ok(svg)
    }

    /// Returns the entries of the legend. A chart with a single line and no reference line has no entries.
    fn legend_entries(&self, reference_line: ReferenceLine) -> Vec<LegendEntry> {
        if self.lines.len() == 1 && reference_line.is_none() {
            return Vec::new();
        }
        let colors = CHART_COLORS.iter().cycle().copied();
        let lines = self.lines.iter().zip(colors);
        let mut all: Vec<_> = lines
            .map(|(line, color)| LegendEntry {
                name: line.name.clone(),
                color,
                symbol: LegendSymbol::Line,
            })
            .collect();
        all.extend(reference_line.map(|(_, name)| LegendEntry {
            name: name.to_owned(),
            color: BLACK,
            symbol: LegendSymbol::Dashes,
        }));
        all
    }
}

/// An optional dashed horizontal line: its y value, and its name in the legend.
type ReferenceLine<'a> = Option<(f64, &'a str)>;

type ChartArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An entry of the legend: a name, and a symbol in the color of its line or bar.
struct LegendEntry {
    name: String,
    color: RGBColor,
    symbol: LegendSymbol,
}

enum LegendSymbol {
    Line,
    Dashes,
    Bar,
}

/// Draws the title and the legend above the chart, so that the legend covers no part of the chart. Returns the y
/// coordinate of the lower end of the legend, in pixels.
fn draw_title_and_legend(
    area: &ChartArea<'_>,
    title: &str,
    legend: &[LegendEntry],
) -> Result<i32, Box<dyn Error>> {
    area.draw(&Text::new(title.to_owned(), (14, 12), TITLE_FONT))?;
    let (mut x, mut y) = (14, 40);
    for LegendEntry { name, color, symbol } in legend {
        let width = 24 + CHAR_WIDTH_PX * name.chars().count() as i32;
        if x > 14 && x + width > CHART_SIZE_PX.0 as i32 - 14 {
            (x, y) = (14, y + 18);
        }
        let line = |from: i32, to: i32| {
            PathElement::new([(x + from, y + 6), (x + to, y + 6)], color.stroke_width(2))
        };
        match symbol {
            LegendSymbol::Line => area.draw(&line(0, 18))?,
            LegendSymbol::Dashes => [(0, 4), (7, 11), (14, 18)]
                .into_iter()
                .try_for_each(|(from, to)| area.draw(&line(from, to)))?,
            LegendSymbol::Bar => {
                area.draw(&Rectangle::new([(x + 3, y), (x + 15, y + 12)], color.filled()))?
            }
        }
        area.draw(&Text::new(name.clone(), (x + 23, y), LABEL_FONT))?;
        x += width + 16;
    }
    Ok(if legend.is_empty() { 34 } else { y + 20 })
}

/// Draws a horizontal bar chart as SVG, with one mark for each bar. The mark crosses the bar at the value with the same
/// index in `marks`. The legend shows the marks as `marks_label`.
///
/// # Errors
/// If the chart has no bars.
pub fn bar_chart_with_marks(
    title: &str,
    bars: &[Bar],
    marks: &[f64],
    marks_label: &str,
) -> ChartSvgResult {
    let values = bars.iter().map(|bar| bar.value).chain(marks.iter().copied());
    let max_value = values.reduce(f64::max).ok_or("a chart without values")?;
    let left = label_width_px(bars.iter().map(|bar| bar.name.as_str()));
    let labels = label_width_px(bars.iter().map(|bar| bar.label.as_str()));
    let width = f64::from(CHART_SIZE_PX.0 as i32 - left - labels);
    let end = |value: f64| left + (width * value / max_value.max(1e-9)) as i32;
    let symbol = LegendEntry {
        name: marks_label.to_owned(),
        color: CHART_COLORS[1],
        symbol: LegendSymbol::Line,
    };
    let head = 64;
    let mut svg = String::new();
    {
        let size = (CHART_SIZE_PX.0, head + 6 + 30 * bars.len() as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw_title_and_legend(&area, title, &[symbol])?;
        for (nth, bar) in bars.iter().enumerate() {
            let (top, right) = (head as i32 + 30 * nth as i32, end(bar.value));
            area.draw(&Rectangle::new([(left, top), (right, top + 20)], CHART_COLORS[0].filled()))?;
            area.draw(&Text::new(bar.name.clone(), (14, top + 4), LABEL_FONT))?;
            let marked = marks.get(nth).map(|mark| end(*mark));
            if let Some(x) = marked {
                let style = CHART_COLORS[1].stroke_width(3);
                area.draw(&PathElement::new([(x, top - 3), (x, top + 23)], style))?;
            }
            let after = right.max(marked.unwrap_or(0)) + 8;
            area.draw(&Text::new(bar.label.clone(), (after, top + 4), LABEL_FONT))?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// A group of bars in a bar chart.
pub struct BarGroup {
    /// The name at the left of the group.
    pub name: String,
    /// The length of each bar, with the label at the end of the bar.
    pub bars: Vec<(f64, String)>,
}

/// Draws a horizontal bar chart with groups of bars as SVG. The entries of `legend` name the bars of each group, in
/// order.
///
/// # Errors
/// If the chart has no bars.
pub fn grouped_bar_chart(title: &str, legend: &[&str], groups: &[BarGroup]) -> ChartSvgResult {
    const BAR_HEIGHT_PX: i32 = 15;
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let max_value = bars().map(|bar| bar.0).reduce(f64::max).ok_or("a chart without values")?;
    let left = label_width_px(groups.iter().map(|group| group.name.as_str()));
    let width =
        f64::from(CHART_SIZE_PX.0 as i32 - left - label_width_px(bars().map(|bar| bar.1.as_str())));
    let legend: Vec<LegendEntry> = legend
        .iter()
        .zip(CHART_COLORS.iter().cycle())
        .map(|(name, color)| LegendEntry {
            name: (*name).to_owned(),
            color: *color,
            symbol: LegendSymbol::Bar,
        })
        .collect();
    let height =
        76 + groups.iter().map(|group| 14 + BAR_HEIGHT_PX * group.bars.len() as i32).sum::<i32>();
    let mut svg = String::new();
    {
        let area =
            SVGBackend::with_string(&mut svg, (CHART_SIZE_PX.0, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut top = draw_title_and_legend(&area, title, &legend)? + 8;
        for group in groups {
            let middle = top + BAR_HEIGHT_PX * group.bars.len() as i32 / 2 - 6;
            area.draw(&Text::new(group.name.clone(), (14, middle), LABEL_FONT))?;
            for ((value, label), color) in group.bars.iter().zip(CHART_COLORS.iter().cycle()) {
                let end = left + (width * value / max_value.max(1e-9)) as i32;
                let body = [(left, top), (end.max(left + 1), top + BAR_HEIGHT_PX - 3)];
                area.draw(&Rectangle::new(body, color.filled()))?;
                area.draw(&Text::new(label.clone(), (end + 7, top), SMALL_FONT))?;
                top += BAR_HEIGHT_PX;
            }
            top += 14;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Returns the width of the longest text in pixels, including the margin between the text and the bars.
fn label_width_px<'a>(texts: impl Iterator<Item = &'a str>) -> i32 {
    28 + CHAR_WIDTH_PX * texts.map(|text| text.chars().count()).max().unwrap_or(0) as i32
}

/// Formats a value for the label of an axis, with the suffix k for thousands and M for millions: 2500 becomes 2.5k.
fn format_axis_value(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let rounded = (value * 100.0).round() / 100.0;
    format!("{rounded}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_chart_escapes_names_in_svg() -> Result<(), Box<dyn Error>> {
        let line = |name: &str| Series { name: name.into(), points: vec![(1e3, 2.0), (1e6, 5.0)] };
        let lines = [line("ours"), line("Mutex<VecDeque>")];
        let all = LineChart {
            title: "a & b",
            x_label: "keys",
            y_label: "ns",
            is_log_x: true,
            lines: &lines,
        };
        let svg = all.draw()?;
        for text in ["ours", "Mutex&lt;VecDeque&gt;", "a &amp; b", "keys"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(LineChart { lines: &[], ..all }.draw().is_err());
        Ok(())
    }

    #[test]
    fn chart_legend_lists_marks_and_reference_line() -> Result<(), Box<dyn Error>> {
        let lines = [Series { name: "alone".into(), points: vec![(0.0, 2.0), (1.0, 5.0)] }];
        let all =
            LineChart { title: "t", x_label: "x", y_label: "y", is_log_x: false, lines: &lines };
        assert!(!all.draw()?.contains("alone"));
        let svg = all.draw_with_reference_line(7.0, "most")?;
        assert!(svg.contains("alone") && svg.contains("most"));

        let bar = Bar { name: "one".into(), value: 3.0, label: "3 %".into() };
        let bars = [bar];
        assert!(bar_chart_with_marks("t", &bars, &[4.0], "bound")?.contains("bound"));
        let group = BarGroup { name: "kind".into(), bars: vec![(0.0, "none".into())] };
        let svg = grouped_bar_chart("t", &["ours"], &[group])?;
        assert!(["kind", "none", "ours"].iter().all(|text| svg.contains(text)));
        assert!(grouped_bar_chart("t", &["ours"], &[]).is_err());
        Ok(())
    }

    #[test]
    fn large_axis_values_are_abbreviated() {
        assert_eq!([0.0, 0.25, 2_500.0, 1e7].map(format_axis_value), ["0", "0.25", "2.5k", "10M"]);
    }
}
