//! Pictures of measures, as SVG.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// A line of a picture.
pub struct Line {
    /// What it is called in the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A picture of lines.
pub struct Lines<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// At its left.
    pub y: &'a str,
    /// Whether each step to the right is ten times as far.
    pub is_log_x: bool,
    /// At least one point in all.
    pub lines: &'a [Line],
}

/// A bar of a picture.
pub struct Bar {
    /// At its left.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// At its end.
    pub label: String,
    /// Whether it is ours: in another colour than those beside it.
    pub is_own: bool,
}

type Drawn = Result<String, Box<dyn Error>>;

/// Told apart in print and by those who see few colours: after Okabe and Ito.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];

const SIZE: (u32, u32) = (760, 380);

const FONT: &str = "sans-serif";

/// Sizes of the font; in pixels they are about four fifths of that.
const TITLE: (&str, i32) = (FONT, 19);

const NAME: (&str, i32) = (FONT, 16);

const SMALL: (&str, i32) = (FONT, 15);

/// About the width of a letter of a name.
const LETTER: i32 = 7;

impl Lines<'_> {
    /// The picture.
    ///
    /// # Errors
    /// If there is no point to draw.
    pub fn draw(&self) -> Drawn {
        self.draw_all(None)
    }

    /// The picture, with a dashed line at one height, and what the legend calls it.
    ///
    /// # Errors
    /// If there is no point to draw.
    pub fn draw_with_level(&self, height: f64, name: &str) -> Drawn {
        self.draw_all(Some((height, name)))
    }

    fn draw_all(&self, level: Level) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let of_x = |pick: fn(f64, f64) -> f64| points().map(|point| point.0).reduce(pick);
        let least = of_x(f64::min).ok_or("a picture of nothing")?;
        let most = of_x(f64::max).ok_or("a picture of nothing")?;
        let highest = points().map(|point| point.1).fold(level.map_or(0.0, |at| at.0), f64::max);
        let y = 0.0..1.05 * highest.max(f64::MIN_POSITIVE);
        match self.is_log_x {
            true => self.draw_on((least..most).log_scale(), y, level),
            false => self.draw_on(least..most, y, level),
        }
    }

    fn draw_on<X>(&self, x: X, y: std::ops::Range<f64>, level: Level) -> Drawn
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let below = draw_head(&area, self.title, &self.entries(level))?;
            let (_, body) = area.split_vertically(below);
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
                .x_desc(self.x)
                .y_desc(self.y)
                .axis_desc_style(SMALL)
                .label_style(SMALL)
                .x_label_formatter(&|x| short(*x))
                .y_label_formatter(&|y| short(*y))
                .draw()?;
            // The first is on top.
            let colored: Vec<_> = self.lines.iter().zip(COLORS.iter().cycle()).collect();
            for (line, color) in colored.into_iter().rev() {
                let points = line.points.iter().copied();
                chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            }
            if let Some((height, _)) = level {
                let ends = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
                let (least, most) = (ends.clone().reduce(f64::min), ends.reduce(f64::max));
                let ends = [least, most].into_iter().flatten().map(|x| (x, height));
                chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(1)))?;
            }
            area.present()?;
        }
        Ok(svg)
    }

    /// What the legend has: nothing, if there is one line only.
    fn entries(&self, level: Level) -> Vec<Entry> {
        if self.lines.len() == 1 && level.is_none() {
            return Vec::new();
        }
        let colors = COLORS.iter().cycle().copied();
        let lines = self.lines.iter().zip(colors);
        let mut all: Vec<_> = lines
            .map(|(line, color)| Entry { name: line.name.clone(), color, mark: Mark::Line })
            .collect();
        all.extend(level.map(|(_, name)| Entry {
            name: name.to_owned(),
            color: BLACK,
            mark: Mark::Dashes,
        }));
        all
    }
}

/// A dashed line at a height, and its name.
type Level<'a> = Option<(f64, &'a str)>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A name of the legend, and how it looks in the picture.
struct Entry {
    name: String,
    color: RGBColor,
    mark: Mark,
}

enum Mark {
    Line,
    Dashes,
    Bar,
}

/// Draws the title and below it the legend, so that it never covers what it explains. Where it ends.
fn draw_head(area: &Area<'_>, title: &str, entries: &[Entry]) -> Result<i32, Box<dyn Error>> {
    area.draw(&Text::new(title.to_owned(), (14, 12), TITLE))?;
    let (mut x, mut y) = (14, 40);
    for Entry { name, color, mark } in entries {
        let width = 24 + LETTER * name.chars().count() as i32;
        if x > 14 && x + width > SIZE.0 as i32 - 14 {
            (x, y) = (14, y + 18);
        }
        let line = |from: i32, to: i32| {
            PathElement::new([(x + from, y + 6), (x + to, y + 6)], color.stroke_width(2))
        };
        match mark {
            Mark::Line => area.draw(&line(0, 18))?,
            Mark::Dashes => [(0, 4), (7, 11), (14, 18)]
                .into_iter()
                .try_for_each(|(from, to)| area.draw(&line(from, to)))?,
            Mark::Bar => {
                area.draw(&Rectangle::new([(x + 3, y), (x + 15, y + 12)], color.filled()))?
            }
        }
        area.draw(&Text::new(name.clone(), (x + 23, y), NAME))?;
        x += width + 16;
    }
    Ok(if entries.is_empty() { 34 } else { y + 20 })
}

/// Bars below each other.
///
/// # Errors
/// If there is none.
pub fn bars(title: &str, bars: &[Bar]) -> Drawn {
    draw_bars(title, bars, &[], "")
}

/// Bars below each other, and across each a mark at a value of its own: what `marks` are called.
///
/// # Errors
/// If there is none.
pub fn bars_with_marks(title: &str, bars: &[Bar], marks: &[f64], called: &str) -> Drawn {
    draw_bars(title, bars, marks, called)
}

fn draw_bars(title: &str, bars: &[Bar], marks: &[f64], called: &str) -> Drawn {
    let values = bars.iter().map(|bar| bar.value).chain(marks.iter().copied());
    let most = values.reduce(f64::max).ok_or("a picture of nothing")?;
    let left = beside(bars.iter().map(|bar| bar.name.as_str()));
    let labels = beside(bars.iter().map(|bar| bar.label.as_str()));
    let width = f64::from(SIZE.0 as i32 - left - labels);
    let end = |value: f64| left + (width * value / most.max(1e-9)) as i32;
    let mark = Entry { name: called.to_owned(), color: COLORS[1], mark: Mark::Line };
    let entries = if marks.is_empty() { Vec::new() } else { vec![mark] };
    let head = if marks.is_empty() { 42 } else { 64 };
    let mut svg = String::new();
    {
        let size = (SIZE.0, head + 6 + 30 * bars.len() as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw_head(&area, title, &entries)?;
        for (nth, bar) in bars.iter().enumerate() {
            let (top, right) = (head as i32 + 30 * nth as i32, end(bar.value));
            let color = if bar.is_own { COLORS[0] } else { RGBColor(170, 170, 170) };
            area.draw(&Rectangle::new([(left, top), (right, top + 20)], color.filled()))?;
            area.draw(&Text::new(bar.name.clone(), (14, top + 4), NAME))?;
            let marked = marks.get(nth).map(|mark| end(*mark));
            if let Some(x) = marked {
                let style = COLORS[1].stroke_width(3);
                area.draw(&PathElement::new([(x, top - 3), (x, top + 23)], style))?;
            }
            let after = right.max(marked.unwrap_or(0)) + 8;
            area.draw(&Text::new(bar.label.clone(), (after, top + 4), NAME))?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Bars that belong together.
pub struct Group {
    /// At their left.
    pub name: String,
    /// Their lengths, each with what stands at its end.
    pub bars: Vec<(f64, String)>,
}

/// Groups of bars below each other; the legend tells which bar of each group is which.
///
/// # Errors
/// If there is none.
pub fn grouped(title: &str, legend: &[&str], groups: &[Group]) -> Drawn {
    const BAR: i32 = 15;
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let most = bars().map(|bar| bar.0).reduce(f64::max).ok_or("a picture of nothing")?;
    let left = beside(groups.iter().map(|group| group.name.as_str()));
    let width = f64::from(SIZE.0 as i32 - left - beside(bars().map(|bar| bar.1.as_str())));
    let entries: Vec<Entry> = legend
        .iter()
        .zip(COLORS.iter().cycle())
        .map(|(name, color)| Entry { name: (*name).to_owned(), color: *color, mark: Mark::Bar })
        .collect();
    let height = 76 + groups.iter().map(|group| 14 + BAR * group.bars.len() as i32).sum::<i32>();
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (SIZE.0, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut top = draw_head(&area, title, &entries)? + 8;
        for group in groups {
            let middle = top + BAR * group.bars.len() as i32 / 2 - 6;
            area.draw(&Text::new(group.name.clone(), (14, middle), NAME))?;
            for ((value, label), color) in group.bars.iter().zip(COLORS.iter().cycle()) {
                let end = left + (width * value / most.max(1e-9)) as i32;
                let body = [(left, top), (end.max(left + 1), top + BAR - 3)];
                area.draw(&Rectangle::new(body, color.filled()))?;
                area.draw(&Text::new(label.clone(), (end + 7, top), SMALL))?;
                top += BAR;
            }
            top += 14;
        }
        area.present()?;
    }
    Ok(svg)
}

/// The room that texts take beside bars.
fn beside<'a>(texts: impl Iterator<Item = &'a str>) -> i32 {
    28 + LETTER * texts.map(|text| text.chars().count()).max().unwrap_or(0) as i32
}

/// A number for an axis: 2500 is 2.5k.
fn short(value: f64) -> String {
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
    fn a_picture_has_every_name_and_no_markup_of_its_own_in_them() -> Result<(), Box<dyn Error>> {
        let line = |name: &str| Line { name: name.into(), points: vec![(1e3, 2.0), (1e6, 5.0)] };
        let lines = [line("ours"), line("Mutex<VecDeque>")];
        let all = Lines { title: "a & b", x: "keys", y: "ns", is_log_x: true, lines: &lines };
        let svg = all.draw()?;
        for text in ["ours", "Mutex&lt;VecDeque&gt;", "a &amp; b", "keys"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(Lines { lines: &[], ..all }.draw().is_err());
        Ok(())
    }

    #[test]
    fn a_legend_names_what_the_lines_do_not() -> Result<(), Box<dyn Error>> {
        let lines = [Line { name: "alone".into(), points: vec![(0.0, 2.0), (1.0, 5.0)] }];
        let all = Lines { title: "t", x: "x", y: "y", is_log_x: false, lines: &lines };
        assert!(!all.draw()?.contains("alone"));
        let svg = all.draw_with_level(7.0, "most")?;
        assert!(svg.contains("alone") && svg.contains("most"));

        let bar = Bar { name: "one".into(), value: 3.0, label: "3 %".into(), is_own: true };
        let bars = [bar];
        assert!(bars_with_marks("t", &bars, &[4.0], "bound")?.contains("bound"));
        let group = Group { name: "kind".into(), bars: vec![(0.0, "none".into())] };
        let svg = grouped("t", &["ours"], &[group])?;
        assert!(["kind", "none", "ours"].iter().all(|text| svg.contains(text)));
        assert!(grouped("t", &["ours"], &[]).is_err());
        Ok(())
    }

    #[test]
    fn numbers_of_an_axis_are_short() {
        assert_eq!([0.0, 0.25, 2_500.0, 1e7].map(short), ["0", "0.25", "2.5k", "10M"]);
    }
}
