//! Tables in markdown.

use std::fmt;

/// A table, row by row.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<T: ToString>(columns: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(columns);
        table
    }

    /// Adds a row.
    pub fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if nth == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}
