//! Collects the results of benchmarks as the cells of tables, and stores them as JSON files.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// One measured value: the cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The name of the table.
    pub table: String,
    /// The name of the row: the measured case.
    pub row: String,
    /// The name of the column: a compared program, or a quantity with its unit.
    pub column: String,
    /// The measured value.
    pub value: f64,
}

/// The measured values of a benchmark, in the order of the rows and columns of their tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Results(Vec<Measurement>);

/// Returns the folder of the result files. Quick results are approximate, so they are in a folder of their own.
pub fn result_folder(is_quick: bool) -> PathBuf {
    PathBuf::from(if is_quick { "target/bench/quick" } else { "target/bench" })
}

impl Results {
    /// Adds a value to a table.
    pub fn add(&mut self, [table, row, column]: [&str; 3], value: f64) {
        let [table, row, column] = [table, row, column].map(str::to_owned);
        self.0.push(Measurement { table, row, column, value });
    }

    /// Replaces the rows that `newer` contains. Two sections of a program may measure rows of the same table.
    pub fn replace_rows(&mut self, newer: Self) {
        self.0.retain(|old| {
            newer.0.iter().all(|new| (&new.table, &new.row) != (&old.table, &old.row))
        });
        self.0.extend(newer.0);
    }

    /// Reads the results in a file. Returns empty results if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, or has another format.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        match fs::read(path) {
            Ok(json) => Ok(serde_json::from_slice(&json)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }

    /// Writes the results to a file. Creates its folder if necessary.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        Ok(fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }

    /// Returns the values of a table.
    pub fn table<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.0.iter().filter(move |cell| cell.table == table)
    }

    /// Returns the value of a cell; `None` if it was not measured.
    pub fn value(&self, [table, row, column]: [&str; 3]) -> Option<f64> {
        self.table(table)
            .find(|cell| cell.row == row && cell.column == column)
            .map(|cell| cell.value)
    }

    /// Returns the rows of a table in order of appearance.
    pub fn rows<'a>(&'a self, table: &'a str) -> Vec<&'a str> {
        distinct_names(self.table(table).map(|cell| cell.row.as_str()))
    }

    /// Returns the columns of a table in order of appearance.
    pub fn columns<'a>(&'a self, table: &'a str) -> Vec<&'a str> {
        distinct_names(self.table(table).map(|cell| cell.column.as_str()))
    }

    /// Returns the names of all tables.
    pub fn tables(&self) -> Vec<&str> {
        distinct_names(self.0.iter().map(|cell| cell.table.as_str()))
    }
}

fn distinct_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Returns the median of the values; 0 if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.into_iter().collect();
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_results_replace_whole_rows() {
        let mut results = Results::default();
        results.add(["a", "one", "ns"], 1.0);
        results.add(["a", "two", "ns"], 2.0);
        results.add(["b", "one", "ns"], 3.0);
        let mut newer = Results::default();
        newer.add(["a", "two", "CPU"], 4.0);
        results.replace_rows(newer);
        assert_eq!(results.value(["a", "one", "ns"]), Some(1.0));
        assert_eq!(results.value(["a", "two", "ns"]), None);
        assert_eq!(results.value(["a", "two", "CPU"]), Some(4.0));
        assert_eq!(results.value(["b", "one", "ns"]), Some(3.0));
    }
}
