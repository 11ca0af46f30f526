//! Draws an SVG chart of arrivals per second, readable on light and dark pages.

use std::fmt::Write;

/// A curve of the chart: the number of arrivals in each second.
pub struct Curve {
    pub name: &'static str,
    pub per_second: Vec<usize>,
}

/// The width and height of the picture, in pixels.
const CHART_SIZE_PIXELS: (usize, usize) = (800, 420);
/// The area of the plot in the picture: left, top, width and height, in pixels.
const PLOT_AREA_PIXELS: (usize, usize, usize, usize) = (62, 56, 720, 300);
/// The times at the left and right edge of the plot, in seconds.
const PLOTTED_TIME_RANGE_SECONDS: (usize, usize) = (50, 140);
/// The number of arrivals per second at the top edge of the plot.
const MAX_PLOTTED_ARRIVALS_PER_SECOND: usize = 1_000;

/// The style sheet of the chart. The picture has its own background, so that it is readable on any page. The colours
/// are from the Okabe-Ito palette, which people with colour blindness can distinguish, darker on white and lighter on
/// black.
const CHART_STYLE_SHEET: &str = "  <style>
    svg { font: 13px system-ui, sans-serif }
    .page { fill: #ffffff } text { fill: #24292f } .title { font-size: 16px; font-weight: 600 }
    .grid { stroke: #d0d7de } .axis { stroke: #57606a }
    .curve { stroke-width: 2; stroke-linejoin: round; fill-opacity: 0.25 }
    .c0 { stroke: #c04a00; fill: #c04a00 } .c1 { stroke: #0072b2; fill: #0072b2 }
    .c2 { stroke: #00795a; fill: #00795a }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d } .axis { stroke: #8b949e }
      .c0 { stroke: #ff8c42; fill: #ff8c42 } .c1 { stroke: #56b4e9; fill: #56b4e9 }
      .c2 { stroke: #2ec99b; fill: #2ec99b }
    }
  </style>
";

const CHART_TITLE: &str = "1000 clients, denied at the same time with Retry-After: 60 s";

pub fn draw_chart(curves: &[Curve]) -> String {
    let mut svg = String::new();
    let (width, height) = CHART_SIZE_PIXELS;
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{CHART_TITLE}">"#
    );
    svg.push_str(CHART_STYLE_SHEET);
    let _ = writeln!(svg, r#"  <rect class="page" width="{width}" height="{height}" rx="6"/>"#);
    draw_text(&mut svg, (PLOT_AREA_PIXELS.0, 32), "start", r#" class="title""#, CHART_TITLE);
    draw_axes(&mut svg);
    for (nth, curve) in curves.iter().enumerate() {
        let points = format_step_curve_points(curve);
        let _ = writeln!(svg, r#"  <polyline class="curve c{nth}" points="{points}"/>"#);
    }
    for (nth, curve) in curves.iter().enumerate() {
        draw_legend_entry(&mut svg, nth, curve);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_axes(svg: &mut String) {
    let (left, top, width, height) = PLOT_AREA_PIXELS;
    for arrivals in (0..=MAX_PLOTTED_ARRIVALS_PER_SECOND).step_by(200) {
        let y = y_pixel_of_arrivals(arrivals);
        draw_line(svg, "grid", (left, y), (left + width, y));
        draw_text(svg, (left - 8, y + 4), "end", "", &arrivals.to_string());
    }
    for second in (PLOTTED_TIME_RANGE_SECONDS.0..=PLOTTED_TIME_RANGE_SECONDS.1).step_by(10) {
        draw_line(
            svg,
            "axis",
            (x_pixel_of_second(second), top + height),
            (x_pixel_of_second(second), top + height + 5),
        );
        draw_text(
            svg,
            (x_pixel_of_second(second), top + height + 20),
            "middle",
            "",
            &second.to_string(),
        );
    }
    draw_line(svg, "axis", (left, top + height), (left + width, top + height));
    let bottom = top + height + 44;
    draw_text(svg, (left + width / 2, bottom), "middle", "", "seconds since the denial");
    let middle = top + height / 2;
    let rotation = format!(r#" transform="rotate(-90 20 {middle})""#);
    draw_text(svg, (20, middle), "middle", &rotation, "clients that come back, per second");
}

/// Returns the points of a step curve over the seconds with arrivals. The curve starts and ends at 0.
fn format_step_curve_points(curve: &Curve) -> String {
    let has_arrivals = |second: &usize| curve.per_second[*second] > 0;
    let first =
        (PLOTTED_TIME_RANGE_SECONDS.0..PLOTTED_TIME_RANGE_SECONDS.1).find(has_arrivals).unwrap();
    let last =
        (PLOTTED_TIME_RANGE_SECONDS.0..PLOTTED_TIME_RANGE_SECONDS.1).rfind(has_arrivals).unwrap();
    let mut points = format!("{},{}", x_pixel_of_second(first), y_pixel_of_arrivals(0));
    for second in first..=last {
        let y = y_pixel_of_arrivals(curve.per_second[second]);
        let _ = write!(
            points,
            " {},{y} {},{y}",
            x_pixel_of_second(second),
            x_pixel_of_second(second + 1)
        );
    }
    let _ = write!(points, " {},{}", x_pixel_of_second(last + 1), y_pixel_of_arrivals(0));
    points
}

fn draw_legend_entry(svg: &mut String, nth: usize, curve: &Curve) {
    let (left, top) = (PLOT_AREA_PIXELS.0 + 300, PLOT_AREA_PIXELS.1 + 18 + nth * 18);
    let _ = writeln!(
        svg,
        r#"  <rect class="curve c{nth}" x="{left}" y="{}" width="18" height="12"/>"#,
        top - 11
    );
    let peak = curve.per_second.iter().max().unwrap();
    let label = format!("{}: at most {peak} in a second", curve.name);
    draw_text(svg, (left + 28, top), "start", "", &label);
}

fn draw_line(svg: &mut String, class: &str, from: (usize, usize), to: (usize, usize)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(svg, r#"  <line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#);
}

fn draw_text(
    svg: &mut String,
    (x, y): (usize, usize),
    anchor: &str,
    attributes: &str,
    content: &str,
) {
    let _ = writeln!(
        svg,
        r#"  <text x="{x}" y="{y}" text-anchor="{anchor}"{attributes}>{content}</text>"#
    );
}

fn x_pixel_of_second(second: usize) -> usize {
    PLOT_AREA_PIXELS.0
        + (second - PLOTTED_TIME_RANGE_SECONDS.0) * PLOT_AREA_PIXELS.2
            / (PLOTTED_TIME_RANGE_SECONDS.1 - PLOTTED_TIME_RANGE_SECONDS.0)
}

fn y_pixel_of_arrivals(arrivals: usize) -> usize {
    PLOT_AREA_PIXELS.1 + PLOT_AREA_PIXELS.3
        - arrivals * PLOT_AREA_PIXELS.3 / MAX_PLOTTED_ARRIVALS_PER_SECOND
}
