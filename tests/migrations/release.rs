//! Failpoints are for builds of developers alone.

#[test]
fn a_release_build_knows_no_failpoint() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_tidegate")).unwrap();
    let name = b"FAILPOINT_OF_TIDEGATE";
    let found = program.windows(name.len()).any(|window| window == name);
    assert_eq!(found, cfg!(debug_assertions));
}
