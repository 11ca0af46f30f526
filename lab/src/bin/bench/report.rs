//! Writes the report: the text of `lab/report.md`, with the measured tables in place of the lines in braces.

use std::error::Error;

use lab::chart::{LineChart, Series};
use lab::results::Results;

use crate::{machine, targets};

/// The text of the report. A line `{{table NAME}}` stands for a table. After the name, `/ COLUMN` shows each value also
/// relative to this column, and `in UNIT` converts nanoseconds to `µs` or `ms`.
const TEMPLATE: &str = include_str!("../../../report.md");

/// Returns the whole report in Markdown.
pub fn page(results: &Results) -> Result<String, Box<dyn Error>> {
    let mut page = String::new();
    for line in TEMPLATE.lines() {
        match line.strip_prefix("{{").and_then(|line| line.strip_suffix("}}")) {
            Some("machine") => page += &machine::table(),
            Some("targets") => page += targets::format_targets(results)?.trim_end(),
            Some(table) => page += format_placeholder(results, table)?.trim_end(),
            None => page += line,
        }
        page += "\n";
    }
    Ok(page)
}

fn format_placeholder(results: &Results, text: &str) -> Result<String, Box<dyn Error>> {
    let text = text.strip_prefix("table ").ok_or_else(|| format!("unknown placeholder {text}"))?;
    let (text, divisor) = match text.rsplit_once(" in ") {
        Some((text, "µs")) => (text, 1e3),
        Some((text, "ms")) => (text, 1e6),
        _ => (text, 1.0),
    };
    let (table, base) = match text.split_once(" / ") {
        Some((table, base)) => (table, Some(base)),
        None => (text, None),
    };
    if results.rows(table).is_empty() {
        Ok("*Not measured in this run.*".to_owned())
    } else {
        Ok(format_table(results, table, base, divisor))
    }
}

/// Returns a table in Markdown. With `base`, each value of another column is also shown relative to this column.
pub fn format_table(results: &Results, table: &str, base: Option<&str>, divisor: f64) -> String {
    let columns = results.columns(table);
    let mut text =
        format!("| | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in results.rows(table) {
        let cell = |column: &&str| {
            let Some(value) = results.value([table, row, column]) else { return "–".to_owned() };
            let base = base.filter(|base| base != column);
            let ratio = base.and_then(|base| Some(value / results.value([table, row, base])?));
            let ratio = ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2}x)"));
            format!("{}{ratio}", format_value(value / divisor))
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        text += &format!("| {row} | {} |\n", cells.join(" | "));
    }
    text
}

/// Formats a value with about three significant digits, and with commas in numbers from a thousand.
fn format_value(value: f64) -> String {
    let text = match value.abs() {
        1_000.0.. => return format_with_commas(value.round() as i64),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn format_with_commas(number: i64) -> String {
    match number.abs() {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", format_with_commas(number / 1_000), number.abs() % 1_000),
    }
}

/// Draws the decision time by the number of keys. Returns `None` if it was not measured.
pub fn draw_memory_keys_chart(results: &Results) -> Result<Option<String>, Box<dyn Error>> {
    const TABLE: &str = "memory-keys";
    let (rows, columns) = (results.rows(TABLE), results.columns(TABLE));
    let point = |row: &str, column: &str| {
        let keys = row.replace(',', "").split(' ').next()?.parse().ok()?;
        Some((keys, results.value([TABLE, row, column])?))
    };
    let lines: Vec<Series> = columns
        .iter()
        .map(|column| Series {
            name: (*column).to_owned(),
            points: rows.iter().filter_map(|row| point(row, column)).collect(),
        })
        .collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let title = "Decision time by the number of text keys";
    let chart = LineChart {
        title,
        x_label: "keys in the store",
        y_label: "ns",
        is_log_x: true,
        lines: &lines,
    };
    chart.draw().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_significant_digits() {
        let formatted = [0.0, 0.79, 1.234, 98.34, 799.04, 73_643.2].map(format_value);
        assert_eq!(formatted, ["0", "0.79", "1.23", "98.3", "799", "73,643"]);
    }

    #[test]
    fn table_shows_ratio_to_base_column() {
        let mut results = Results::default();
        results.add(["t", "1,000 keys", "slidegate"], 50.0);
        results.add(["t", "1,000 keys", "governor"], 40.0);
        results.add(["t", "10,000 keys", "slidegate"], 60.0);
        assert_eq!(
            format_table(&results, "t", Some("slidegate"), 1.0),
            "| | slidegate | governor |\n|---|---|---|\n\
             | 1,000 keys | 50 | 40 (0.80x) |\n| 10,000 keys | 60 | – |\n"
        );
    }
}
