//! `slidegate schema`: the JSON Schema of policy files.

use std::error::Error;

use slidegate::policy::file;

use super::print;

pub fn run() -> Result<(), Box<dyn Error>> {
    print(&format!("{}\n", serde_json::to_string_pretty(&file::schema())?))?;
    Ok(())
}
