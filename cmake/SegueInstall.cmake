# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the program, the attention library with its headers, and a package that
# find_package(segue) finds, with the target segue::attention.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/segue)
install(TARGETS segue RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS segue_attention EXPORT segue LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/segue/attention.h include/segue/c.h include/segue/error.h include/segue/types.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/segue)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT segue NAMESPACE segue:: FILE segueTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/segueConfig.cmake.in ${CMAKE_BINARY_DIR}/segueConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the C++ classes; the C ABI has a version of its own (segue/c.h).
write_basic_package_version_file(${CMAKE_BINARY_DIR}/segueConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/segueConfig.cmake ${CMAKE_BINARY_DIR}/segueConfigVersion.cmake
        DESTINATION ${package_dir})
