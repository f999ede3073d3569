//! Failpoints are for builds of developers alone.

use std::process::Command;

use crate::process::repository;

const VARIABLE: &[u8] = b"FAILPOINT_OF_TIDEGATE";

fn knows_the_variable(path: impl AsRef<std::path::Path>) -> bool {
    let program = std::fs::read(path).unwrap();
    program
        .windows(VARIABLE.len())
        .any(|window| window == VARIABLE)
}

#[test]
fn the_program_knows_failpoints_with_debug_assertions_alone() {
    let known = knows_the_variable(env!("CARGO_BIN_EXE_tidegate"));
    assert_eq!(known, cfg!(debug_assertions));
}

#[test]
fn a_release_build_knows_no_failpoint() {
    // A release has no debug assertions,
    let manifest = std::fs::read_to_string(repository("Cargo.toml")).unwrap();
    assert!(!manifest.contains("debug-assertions"));
    // and without them the failpoints' own source compiles to nothing: not even what
    // they wait with is needed.
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("failpoint.o");
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiled = Command::new(compiler)
        .args(["--edition=2024", "--crate-type=lib", "--emit=obj"])
        .args(["-Copt-level=3", "-Cdebug-assertions=off", "-o"])
        .arg(&object)
        .arg(repository("crates/store/src/failpoint.rs"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{words}");
    assert!(!knows_the_variable(&object));
}
